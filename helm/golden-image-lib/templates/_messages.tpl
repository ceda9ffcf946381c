{{- /*
Every refusal of this library, word by word. e2e/charts/vectors.yaml repeats this table and the tests compare the two. What is said about a
golden has the words of the daemon's rules (src/rules/clone), so that a hoster who meets both meets one text.

{subject} is the object refused: KubernetesNodes tenant-a/cluster-pool or VMDisk tenant-a/disk.
*/ -}}
{{- define "golden-image.messages" -}}
bothSources: '{subject}: set only one of osImage.builtin and osImage.factory'
osImageShape: '{subject}: osImage may hold `builtin` or `factory`; it has {given}'
osImageMember: '{subject}: osImage.{member} may hold {fields}; it has {given}'
invalidValue: '{subject}: {field}: {error}'
emptyScalar: '{subject}: talos.{field} is set to an empty text, and an explicit value is never replaced by a default; remove the key to follow the class or the platform, or give a value'
conflict: '{subject}: {field} {resolved} conflicts with {fixed}, which {source} fixes, and another image source does not lift that; use a class that carries {resolved}, or drop the override'
unknownFamily: '{subject}: class {class} has bootstrap {family}, which this chart cannot boot'
classNotFound: '{subject}: there is no WorkerClass {class}'
kairosOsImage: '{subject}: osImage selects a Talos source, and class {class} boots Kairos; remove osImage: the disk of a Kairos class comes from the class'
kairosTalos: '{subject}: class {class} boots Kairos and takes no Talos settings; remove {given}'
kairosPair: '{subject}: class {class} must give image.reference and image.kubernetesVersion together (R2)'
kairosMinor: '{subject}: the image of class {class} carries Kubernetes {imageVersion}, and the pool asks for {poolVersion}; set the pool''s version to {imageMinor}, or choose a class whose image carries {poolVersion}'
kairosNoImage: '{subject}: class {class} carries no image, and this chart was given no Kairos image of the platform'
kairosOffline: '{subject}: the golden of class {class} is found by its identity {identity}, which needs a cluster: render with --dry-run=server'
privateKey: '{subject}: talos.imageFactoryCA holds a private key, which would be published in a ConfigMap; give certificates only'
notCertificates: '{subject}: talos.imageFactoryCA must be whole PEM certificates (BEGIN CERTIFICATE … END CERTIFICATE) and nothing else'
noGolden: '{subject}: golden {namespace}/{golden} does not exist and no GoldenImage makes it: create the image, or correct the name'
noIdentity: '{subject}: no golden in {namespace} has the identity {identity} of the image of class {class}, and no GoldenImage makes one: create the image with this reference'
unnamed: '{subject}: GoldenImage {image} makes the golden, whose name is not known until a factory has given its schematic document an ID; try again in a moment, or see `kubectl describe goldenimage {image}` for what holds it up'
goldenFailed: '{subject}: golden {namespace}/{golden} cannot be made ({reason}): {error}'
goldenTerminating: '{subject}: golden {namespace}/{golden} is being deleted: a clone of it would hang; try again when it is gone or made anew'
goldenRetiring: '{subject}: golden {namespace}/{golden} is being retired: pools that use it go on, but {pool} is not one of them; use another image'
goldenRetired: '{subject}: golden {namespace}/{golden} is retired: use another image'
noClass: '{subject}: golden {namespace}/{golden} cannot be cloned: the disk states no StorageClass and the cluster has no default one: write `storageClassName: {goldenClass}`'
noClassYet: '{subject}: golden {namespace}/{golden} cannot be cloned: the disk states no StorageClass and the cluster has no default one'
classMismatch: '{subject}: golden {namespace}/{golden} is in StorageClass "{goldenClass}", the disk in "{class}" ({from}): storage cannot clone across classes; write `storageClassName: {goldenClass}`, or add a target for "{class}" to the image'
classMismatchAlone: '{subject}: golden {namespace}/{golden} is in StorageClass "{goldenClass}", the disk in "{class}" ({from}): storage cannot clone across classes; write `storageClassName: {goldenClass}`, or create the GoldenImage with a target for "{class}"'
classMismatchOfMany: '{subject}: golden {namespace}/{golden} is in StorageClass "{goldenClass}", the disk in "{class}" ({from}): storage cannot clone across classes; write `storageClassName: {goldenClass}`, or clone one of {targets}'
noSize: '{subject}: golden {namespace}/{golden} cannot be cloned into a disk of size {size}, which is no size'
tooSmall: '{subject}: golden {namespace}/{golden} asks storage for {large}, the disk for {small}: a clone cannot be smaller; {advice}'
tooLarge: '{subject}: golden {namespace}/{golden} holds {held}, the disk wants {wanted}, and class "{class}" cannot grow volumes: {advice}, or set `allowVolumeExpansion: true` on the class'
{{- end -}}

{{- /* Records the first refusal. Arguments out, message (a key of the table), with (what fills the braces). */ -}}
{{- define "golden-image.refuse" -}}
{{- if not (hasKey .out "error") -}}
{{-   $text := index (include "golden-image.messages" . | fromYaml) .message -}}
{{-   range $name, $value := .with -}}
{{-     $text = replace (printf "{%s}" $name) (toString $value) $text -}}
{{-   end -}}
{{-   $_ := set .out "error" $text -}}
{{-   $_ := set .out "message" .message -}}
{{- end -}}
{{- end -}}

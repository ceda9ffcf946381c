{{- /*
Every refusal of this library, word by word. e2e/charts/vectors.yaml repeats this table and the tests compare the two, so that the
daemon's rules can say the same thing about the same trouble.

{subject} is the object refused, as its pool annotation names it: tenant-a/KubernetesNodes/cluster-pool or tenant-a/VMDisk/disk.
*/ -}}
{{- define "golden-image.messages" -}}
bothSources: "{subject}: set only one of osImage.builtin and osImage.factory."
osImageShape: "{subject}: osImage may hold `builtin` or `factory`; it has {given}."
invalidValue: "{subject}: {field}: {error}."
emptyScalar: "{subject}: talos.{field} is set to an empty text, and an explicit value is never replaced by a default. Remove the key to follow the class or the platform, or give a value."
conflict: "{subject}: {field} {resolved} conflicts with {fixed}, which {source} fixes. Another image source does not lift that. Use a class that carries {resolved}, or drop the override."
unknownFamily: "{subject}: class {class} has bootstrap {family}, which this chart cannot boot."
classNotFound: "{subject}: there is no WorkerClass {class}."
kairosOsImage: "{subject}: osImage selects a Talos source, and class {class} boots Kairos. Remove osImage: the disk of a Kairos class comes from the class."
kairosTalos: "{subject}: class {class} boots Kairos and takes no Talos settings. Remove {given}."
kairosPair: "{subject}: class {class} must give image.reference and image.kubernetesVersion together (R2)."
kairosMinor: "{subject}: the image of class {class} carries Kubernetes {imageVersion}, and the pool asks for {poolVersion}. Set the pool's version to {imageMinor}, or choose a class whose image carries {poolVersion}."
kairosNoImage: "{subject}: class {class} carries no image, and this chart was given no Kairos image of the platform."
kairosOffline: "{subject}: the golden of class {class} is found by its identity {identity}, which needs a cluster. Render with --dry-run=server."
noGolden: "{subject}: there is no golden image {golden} in {namespace}. Add its entry to the catalog (kubernetesWorkerImage.images), or choose a source that does not clone."
goldenFailed: "{subject}: golden image {golden} failed: {error} A clone of it would wait for ever. Mend the entry, or choose another image."
goldenRetiring: "{subject}: golden image {golden} is being retired and takes no new consumers. Choose another image."
noClass: "{subject}: no storageClass is set and the cluster has no default StorageClass. Set storageClass to one that golden image {golden} has: {targets}."
classMismatch: "{subject}: its disk would be of StorageClass {class}, and golden image {golden} is of StorageClass {goldenClass}: storage cannot clone from one class into another. It exists in: {targets}. Add a target of class {class} to the image's entry, or choose a class from that list."
tooSmall: "{subject}: its disk of {disk} is smaller than golden image {golden}, which has {size}. Ask for {size} or more."
tooLarge: "{subject}: its disk of {disk} is larger than golden image {golden}, which has {size}, and StorageClass {class} cannot expand volumes. Ask for {size}, or set allowVolumeExpansion on the class."
privateKey: "{subject}: talos.imageFactoryCA holds a private key, which would be published in a ConfigMap. Give certificates only."
notCertificates: "{subject}: talos.imageFactoryCA must be whole PEM certificates (BEGIN CERTIFICATE … END CERTIFICATE) and nothing else."
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

{{- /*
VM disks: what a VM-disk chart includes.

golden-image.disk: where the disk is a clone of a catalog image, finds the golden in the disk's class and guards it. Arguments:
  root, storageClass, diskSize, catalog, out    as for golden-image.worker
  image   the image's name, as VM users choose it
  name    the disk's name (not its release's)
Sets out.clone, golden, pool, storageClass, catalog; fails with the reason.
*/ -}}
{{- define "golden-image.disk" -}}
{{- $subject := printf "VMDisk %s/%s" .root.Release.Namespace .name -}}
{{- $reference := printf "%s/VMDisk/%s" .root.Release.Namespace .name -}}
{{- $catalog := include "golden-image.namespace" .catalog -}}
{{- $out := .out -}}
{{- /* It becomes a part of names, and a render without a cluster finds no golden that would be missing. */ -}}
{{- if not (and (kindIs "string" .image) (regexMatch "^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$" .image)) -}}
{{-   fail (printf "%s: %s is not the name of an image, which has lowercase letters, digits, `-` and `.`: `kubectl get goldenimages` shows what there is" $subject (include "golden-image.shown" (toString .image))) -}}
{{- end -}}
{{- $resolved := dict -}}
{{- include "golden-image.resolve.disk" (dict "image" .image "out" $resolved) -}}
{{- $observed := dict -}}
{{- include "golden-image.observe" (dict "root" .root "catalog" $catalog "out" $observed) -}}
{{- include "golden-image.decide" (dict "subject" $subject "reference" $reference "namespace" $catalog "resolved" $resolved "observed" $observed "storageClass" .storageClass "diskSize" .diskSize "out" $out) -}}
{{- $_ := set $out "catalog" $catalog -}}
{{- if hasKey $out "error" -}}{{- fail $out.error -}}{{- end -}}
{{- end -}}

{{- /* A VM user names an image; its goldens carry that name as a label, and the first of them the prefix that today's console lists. */ -}}
{{- define "golden-image.resolve.disk" -}}
{{- $_ := set .out "kind" "golden" -}}
{{- $_ := set .out "image" .image -}}
{{- $_ := set .out "identity" "" -}}
{{- $_ := set .out "golden" (include "golden-image.name" (dict "image" .image "virtualMachine" true)) -}}
{{- end -}}

{{- /* The disk's two annotations. For a disk that exists already, pass what it carries: metadata of a clone is set once, at its creation. */ -}}
{{- define "golden-image.disk.annotations" -}}
{{- $mark := include "golden-image.mark" . -}}
{{ $mark }}golden: {{ .golden | quote }}
{{ $mark }}pool: {{ .pool | quote }}
{{- end -}}

{{- /*
A Kairos class: its disk is a container disk pinned by digest, found in the catalog by identity. Arguments and results: _resolve.tpl.
*/ -}}
{{- define "golden-image.resolve.kairos" -}}
{{- $subject := .subject -}}
{{- $out := .out -}}
{{- $name := get .class "name" -}}
{{- if not (kindIs "invalid" .osImage) -}}
{{-   include "golden-image.refuse" (dict "out" $out "message" "kairosOsImage" "with" (dict "subject" $subject "class" $name)) -}}
{{- end -}}
{{- $given := list -}}
{{- range $key, $value := (.talos | default dict) -}}
{{-   if $value -}}{{- $given = append $given (printf "talos.%s" $key) -}}{{- end -}}
{{- end -}}
{{- if $given -}}
{{-   include "golden-image.refuse" (dict "out" $out "message" "kairosTalos" "with" (dict "subject" $subject "class" $name "given" (join ", " $given))) -}}
{{- end -}}
{{- $image := get .class "image" | default dict -}}
{{- $fixed := not (empty $image) -}}
{{- if not $fixed -}}{{- $image = .platformImage | default dict -}}{{- end -}}
{{- $reference := get $image "reference" | default "" -}}
{{- $version := get $image "kubernetesVersion" | default "" -}}
{{- if not $image -}}
{{-   include "golden-image.refuse" (dict "out" $out "message" "kairosNoImage" "with" (dict "subject" $subject "class" $name)) -}}
{{- else if not (and $reference $version) -}}
{{-   include "golden-image.refuse" (dict "out" $out "message" "kairosPair" "with" (dict "subject" $subject "class" $name)) -}}
{{- end -}}
{{- $error := include "golden-image.reference.error" $reference -}}
{{- if and $reference $error -}}
{{-   include "golden-image.refuse" (dict "out" $out "message" "invalidValue" "with" (dict "subject" $subject "field" "image.reference" "error" $error)) -}}
{{- end -}}
{{- $minor := regexFind "^v[0-9]+\\.[0-9]+" $version -}}
{{- $wanted := .kubernetesVersion | default "" | toString -}}
{{- if and $version (ne $minor (regexFind "^v[0-9]+\\.[0-9]+" $wanted)) -}}
{{-   include "golden-image.refuse" (dict "out" $out "message" "kairosMinor" "with" (dict "subject" $subject "class" $name "imageVersion" $version "imageMinor" $minor "poolVersion" $wanted)) -}}
{{- end -}}
{{- $_ := set $out "kubernetesVersion" $version -}}
{{- if $fixed -}}
{{- /* The golden's name holds the entry's name, which a class does not know: only the identity leads to it. */ -}}
{{-   $_ := set $out "kind" "golden" -}}
{{-   $_ := set $out "golden" "" -}}
{{-   $_ := set $out "identity" (include "golden-image.identity" (dict "containerDisk" (dict "reference" $reference "architecture" (get $image "architecture")))) -}}
{{- else -}}
{{-   $_ := set $out "kind" "registry" -}}
{{-   $_ := set $out "url" (printf "docker://%s" $reference) -}}
{{- end -}}
{{- end -}}

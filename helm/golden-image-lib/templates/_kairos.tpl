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
{{- $reference := get $image "reference" | default "" | toString -}}
{{- $version := get $image "kubernetesVersion" | default "" | toString -}}
{{- if not $image -}}
{{-   include "golden-image.refuse" (dict "out" $out "message" "kairosNoImage" "with" (dict "subject" $subject "class" $name)) -}}
{{- else if not (and $reference $version) -}}
{{-   include "golden-image.refuse" (dict "out" $out "message" "kairosPair" "with" (dict "subject" $subject "class" $name)) -}}
{{- end -}}
{{- $error := include "golden-image.reference.error" $reference -}}
{{- if and $reference $error -}}
{{-   include "golden-image.refuse" (dict "out" $out "message" "invalidValue" "with" (dict "subject" $subject "field" "image.reference" "error" $error)) -}}
{{- end -}}
{{- /* The version becomes the Machine's, so it is held to what the catalog holds an entry to: whole, and not the tag's opposite. */ -}}
{{- $error = include "golden-image.kubernetesVersion.error" $version | default (include "golden-image.tag.error" (dict "reference" $reference "version" $version)) -}}
{{- if and $version $error -}}
{{-   include "golden-image.refuse" (dict "out" $out "message" "invalidValue" "with" (dict "subject" $subject "field" "image.kubernetesVersion" "error" $error)) -}}
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

{{- /* What a Kubernetes version looks like, and what is wrong with a text that is none (src/model/kubernetes.rs). */ -}}
{{- define "golden-image.kubernetesVersion.pattern" -}}
(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})([-+][0-9A-Za-z]([-+.0-9A-Za-z]*[0-9A-Za-z])?)?$
{{- end -}}

{{- define "golden-image.kubernetesVersion.error" -}}
{{- $pattern := include "golden-image.kubernetesVersion.pattern" . -}}
{{- if and (regexMatch (printf "^%s" $pattern) .) (lt (len .) 63) -}}
{{ include "golden-image.shown" . }} is not a valid Kubernetes version: the leading `v` is missing: write `v{{ . }}`
{{- else if or (not (regexMatch (printf "^v%s" $pattern) .)) (gt (len .) 63) -}}
{{ include "golden-image.shown" . }} is not a valid Kubernetes version: must be `vMAJOR.MINOR.PATCH`, with the distribution where it has one, such as `v1.35.6+k3s1`
{{- end -}}
{{- end -}}

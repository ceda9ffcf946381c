{{- /*
Names that the catalog, its daemon and every consumer share (docs/architecture.md, "Names"). They live here once, so that a pool chart and a VM-disk
chart cannot spell one differently.

A note on how these templates are written: a Go template returns only text, so whatever has more than one answer writes into the `out`
dict that its caller hands over. Pure templates (resolve, decide) put a refusal into out.error instead of failing, which lets the shared
vectors run hundreds of cases in one render; the entry points in _worker.tpl and _disk.tpl are the only ones that call fail, and
_observe.tpl is the only file that calls lookup.
*/ -}}

{{- /* The prefix of every label and annotation of ours, with its slash. */ -}}
{{- define "golden-image.mark" -}}kubernetes-worker-image.cozystack.io/{{- end -}}

{{- /* The namespace that holds the goldens. Argument: the caller's override, or nothing. */ -}}
{{- define "golden-image.namespace" -}}{{ . | default "cozy-public" }}{{- end -}}

{{- /*
R1, as the daemon's own types spell it (src/model/talos.rs). Both return what is wrong with the text, and nothing when it is fine.
*/ -}}
{{- define "golden-image.schematicID.error" -}}
{{- if not (regexMatch "^[a-z0-9]{1,64}$" .) -}}
{{ include "golden-image.shown" . }} is not a valid schematic ID: must be 1 to 64 lowercase letters and digits (R1)
{{- end -}}
{{- end -}}

{{- define "golden-image.version.error" -}}
{{- $number := "(0|[1-9][0-9]{0,8})" -}}
{{- $plain := printf "%s\\.%s\\.%s" $number $number $number -}}
{{- if regexMatch (printf "^%s$" $plain) . -}}
{{ include "golden-image.shown" . }} is not a valid Talos version: the leading `v` is missing: write `v{{ . }}` (R1)
{{- else if not (regexMatch (printf "^v%s$" $plain) .) -}}
{{ include "golden-image.shown" . }} is not a valid Talos version: must be `vMAJOR.MINOR.PATCH` without leading zeros, such as `v1.13.6` (R1)
{{- end -}}
{{- end -}}

{{- /* R2, as src/model/source.rs spells it. */ -}}
{{- define "golden-image.reference.error" -}}
{{- /* A password may stand before an `@` that begins no digest, and a signature behind a `?`: not repeated. */ -}}
{{- $name := regexReplaceAll "@(sha256|sha512|blake3):[0-9A-Fa-f]*$" . "" -}}
{{- $shown := include "golden-image.shown" (ternary "…" . (regexMatch "[@?#]" $name)) -}}
{{- if contains "://" . -}}
{{ $shown }} is not a valid image reference: must not have a scheme: write `registry/repository@sha256:…`
{{- else if not (contains "@" .) -}}
{{ $shown }} is not a valid image reference: must be pinned: append `@sha256:<64 hex>`, as the registry reports it (R2)
{{- else if not (include "golden-image.reference.isOne" .) -}}
{{ $shown }} is not a valid image reference: must be `registry/repository[:tag]@sha256:<64 hex>`
{{- end -}}
{{- end -}}

{{- /* The form of the OCI distribution specification, pinned; empty where it is another. */ -}}
{{- define "golden-image.reference.isOne" -}}
{{- $label := "[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?" -}}
{{- $step := "[a-z0-9]+(([._]|__|-*)[a-z0-9]+)*" -}}
{{- $name := printf "(%s(\\.%s)*(:[0-9]+)?/)?%s(/%s)*" $label $label $step $step -}}
{{- if and (regexMatch (printf "^%s(:[A-Za-z0-9_][-.A-Za-z0-9_]{0,127})?@sha256:[0-9a-f]{64}$" $name) .) (le (len (regexFind (printf "^%s" $name) .)) 255) -}}yes{{- end -}}
{{- end -}}

{{- /*
R2, as src/rules/container.rs spells it: a tag that names another Kubernetes than the version stated beside it. A tag that names none says
nothing. Arguments reference, version; returns what is wrong.
*/ -}}
{{- define "golden-image.tag.error" -}}
{{- $form := printf "^v%s" (include "golden-image.kubernetesVersion.pattern" .) -}}
{{- $tag := .reference | splitList "@" | first | splitList "/" | last | splitList ":" | rest | join ":" -}}
{{- $tag = regexReplaceAll "-(uki|img)$" $tag "" -}}
{{- $tagged := "" -}}
{{- $named := false -}}
{{- range $marker := list "k3s-v" "k0s-v" "rke2-v" "k3sv" "k0sv" "rke2v" "kubernetes-v" "kubeadm-v" "k8s-v" "kubernetesv" "kubeadmv" "k8sv" -}}
{{-   if and (contains $marker $tag) (not $named) -}}
{{-     $rest := splitList $marker $tag | last -}}
{{- /* The marker is a word of its own: the distribution between two dashes, or at the start. */ -}}
{{-     if regexMatch "(^|[-_.])$" (trimSuffix (printf "%s%s" $marker $rest) $tag) -}}
{{-       $named = true -}}
{{- /* Beside Kubernetes' own name only the release counts: what follows is whoever built the image's to say. */ -}}
{{-       if hasPrefix "ku" $marker | or (hasPrefix "k8s" $marker) -}}{{- $rest = regexFind "^[0-9.]*" $rest | trimAll "." -}}{{- end -}}
{{-       $tagged = printf "v%s" $rest -}}
{{-     end -}}
{{-   end -}}
{{- end -}}
{{- /* As the distribution itself is tagged. A bare v1.36.1 may be the image's own version. */ -}}
{{- if and (not $named) (regexMatch "-(k3s|k0s\\.|rke2r)[0-9]+$" $tag) -}}{{- $tagged = $tag -}}{{- end -}}
{{- if and (regexMatch $form $tagged) (regexMatch $form .version) (le (len $tagged) 63) -}}
{{-   $releases := list -}}
{{-   $distributions := list -}}
{{-   range list $tagged .version -}}
{{-     $release := regexFind "^[^-+]*" . -}}
{{-     $releases = append $releases $release -}}
{{-     with trimPrefix $release . | replace "+" "-" -}}{{- $distributions = append $distributions . -}}{{- end -}}
{{-   end -}}
{{-   if or (gt (len (uniq $releases)) 1) (gt (len (uniq $distributions)) 1) -}}
the tag of `reference` says Kubernetes {{ $tagged }} and this says {{ .version }}: one of them is of another image (R2); correct it, or leave the tag out
{{-   end -}}
{{- end -}}
{{- end -}}

{{- /* A value as a message repeats it: quoted, and cut to 120 characters (InvalidValue in src/model/mod.rs). */ -}}
{{- define "golden-image.shown" -}}
{{- $letters := splitList "" . -}}
{{- if gt (len $letters) 120 -}}{{ printf "%q" (printf "%s…" (slice $letters 0 120 | join "")) }}{{- else -}}{{ printf "%q" . }}{{- end -}}
{{- end -}}

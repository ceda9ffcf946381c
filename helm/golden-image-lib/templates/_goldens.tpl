{{- /*
Which goldens of an image the cluster holds: pure.

golden-image.goldens. Arguments: resolved, observed, class (the wanted one), out. Sets
  out.image   the GoldenImage, or {}
  out.found   a list of {name, class, request, capacity, mode, failed {reason, message}, terminating, retiring, retired}, by name

Three kinds of evidence, from what is to what will be. A claim with our mark and this identity (or image name) is a golden whatever it is
called; so is a claim of the derived name without our mark, which the former catalogs and hosters made by hand (R13). What the GoldenImage
says about a target counts where there is no claim yet, and a bare DataVolume last. CDI's temporaries carry tenants' labels and are never
goldens.
*/ -}}
{{- define "golden-image.goldens" -}}
{{- $resolved := .resolved -}}
{{- $observed := .observed -}}
{{- $names := list -}}
{{- if $resolved.golden -}}{{- $names = list $resolved.golden (printf "%s-%s" $resolved.golden .class) -}}{{- end -}}
{{- $image := dict -}}
{{- range $candidate := ($observed.images | default list) -}}
{{-   if or (and $resolved.identity (eq (get $candidate "identity" | default "") $resolved.identity)) (and (get $resolved "image") (eq $candidate.name (get $resolved "image"))) -}}
{{-     if not $image -}}{{- $image = $candidate -}}{{- end -}}
{{-   end -}}
{{- end -}}
{{- $found := dict -}}
{{- range $claim := ($observed.claims | default list) -}}
{{-   $byMark := and (get $claim "ours") (or (and $resolved.identity (eq (get $claim "identity" | default "") $resolved.identity)) (and (get $resolved "image") (eq (get $claim "image" | default "") (get $resolved "image")))) -}}
{{-   if and (or $byMark (has $claim.name $names)) (not (get $claim "temporary")) -}}
{{-     $_ := set $found $claim.name (dict "name" $claim.name "class" (get $claim "class") "request" (get $claim "request") "capacity" (get $claim "capacity") "mode" (get $claim "mode") "retiring" (get $claim "retiring") "retired" (get $claim "retired") "terminating" (get $claim "terminating")) -}}
{{-   end -}}
{{- end -}}
{{- range $index, $target := (get $image "targets" | default list) -}}
{{- /* A target without a recorded name gets the derived one: the first without class, each further one with it. */ -}}
{{-   $name := get $target "golden" -}}
{{-   if not $name -}}
{{-     $base := $resolved.golden | default (include "golden-image.name" (dict "image" $image.name "kairos" true)) -}}
{{-     $name = ternary $base (printf "%s-%s" $base (get $target "class")) (eq $index 0) -}}
{{-   end -}}
{{-   if not (hasKey $found $name) -}}
{{-     $_ := set $found $name (dict "name" $name "class" (get $target "class") "request" (get $target "size")) -}}
{{-   end -}}
{{-   if and (get $image "failed") (not (get $target "ready")) -}}
{{-     $_ := set (get $found $name) "failed" (get $image "failed") -}}
{{-   end -}}
{{- end -}}
{{- range $volume := ($observed.volumes | default list) -}}
{{-   if and (has $volume.name $names) (not (hasKey $found $volume.name)) -}}
{{-     $_ := set $found $volume.name (dict "name" $volume.name "class" (get $volume "class") "request" (get $volume "size")) -}}
{{-   end -}}
{{-   if and (hasKey $found $volume.name) (not $image) (eq (get $volume "phase") "Failed") -}}
{{-     $_ := set (get $found $volume.name) "failed" (dict "reason" "ImportFailed" "message" "its DataVolume is in phase Failed") -}}
{{-   end -}}
{{- end -}}
{{- $list := list -}}
{{- range $name := keys $found | sortAlpha -}}{{- $list = append $list (get $found $name) -}}{{- end -}}
{{- $_ := set .out "image" $image -}}
{{- $_ := set .out "found" $list -}}
{{- end -}}

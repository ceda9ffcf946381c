{{- /*
Which goldens of an image the cluster holds: pure.

golden-image.goldens. Arguments: resolved, observed, class (the wanted one), out. Sets
  out.image   the GoldenImage, or {}
  out.found   a list of {name, class, request, capacity, mode, failed {reason, message}, terminating, retiring, retired}, by name

Two kinds of evidence: what is, and what will be. A claim with our mark and this identity (or image name) is a golden whatever it is called;
so is a claim of the derived name without our mark, which the former catalogs and hosters made by hand (R13). What the GoldenImage says of a
target counts where there is no claim yet. CDI's temporaries carry tenants' labels and are never goldens, and a DataVolume without a claim
is none yet: the daemon refuses its clones too.
*/ -}}
{{- define "golden-image.goldens" -}}
{{- $resolved := .resolved -}}
{{- $observed := .observed -}}
{{- $image := dict -}}
{{- range $candidate := ($observed.images | default list) -}}
{{-   if or (and $resolved.identity (eq (get $candidate "identity" | default "") $resolved.identity)) (and (get $resolved "image") (eq $candidate.name (get $resolved "image"))) -}}
{{-     if not $image -}}{{- $image = $candidate -}}{{- end -}}
{{-   end -}}
{{- end -}}
{{- $names := list -}}
{{- range $base := list $resolved.golden (get $image "base") -}}
{{-   if $base -}}{{- $names = concat $names (list $base (printf "%s-%s" $base $.class)) -}}{{- end -}}
{{- end -}}
{{- $found := dict -}}
{{- range $claim := ($observed.claims | default list) -}}
{{-   $byMark := and (get $claim "ours") (or (and $resolved.identity (eq (get $claim "identity" | default "") $resolved.identity)) (and (get $resolved "image") (eq (get $claim "image" | default "") (get $resolved "image")))) -}}
{{-   if and (or $byMark (has $claim.name $names)) (not (get $claim "temporary")) -}}
{{-     $_ := set $found $claim.name (dict "name" $claim.name "class" (get $claim "class") "request" (get $claim "request") "capacity" (get $claim "capacity") "mode" (get $claim "mode") "retiring" (get $claim "retiring") "retired" (get $claim "retired") "terminating" (get $claim "terminating") "ours" (get $claim "ours") "pending" (get $claim "pending")) -}}
{{-   end -}}
{{- end -}}
{{- $phases := dict -}}
{{- range $volume := ($observed.volumes | default list) -}}{{- $_ := set $phases $volume.name (get $volume "phase" | default "Pending") -}}{{- end -}}
{{- range $target := (get $image "targets" | default list) -}}
{{-   $failed := get $target "failed" | default dict -}}
{{-   if not (hasKey $found $target.golden) -}}
{{-     $_ := set $found $target.golden (dict "name" $target.golden "class" (get $target "class") "request" (get $target "size")) -}}
{{-     if get $target "claimed" -}}{{- $failed = dict "reason" "GoldenMissing" "message" "the golden's claim is gone" -}}{{- end -}}
{{-   else -}}
{{- /* One that stands can be cloned whatever became of its image, and so can one that was made by hand. */ -}}
{{-     $golden := get $found $target.golden -}}
{{-     $stands := and (not (get $golden "pending")) (eq (get $phases $target.golden | default "Succeeded") "Succeeded") -}}
{{-     if or $stands (not (get $golden "ours")) -}}{{- $failed = dict -}}{{- end -}}
{{-   end -}}
{{-   if $failed -}}{{- $_ := set (get $found $target.golden) "failed" $failed -}}{{- end -}}
{{- end -}}
{{- range $volume := ($observed.volumes | default list) -}}
{{- /* CDI says Failed of a DataVolume whose claim has lost its volume. */ -}}
{{-   $golden := get $found $volume.name | default dict -}}
{{-   if and $golden (not (get $golden "failed")) (eq (get $volume "phase") "Failed") -}}
{{-     $_ := set $golden "failed" (dict "reason" "ClaimLost" "message" "the golden's claim has lost its volume") -}}
{{-   end -}}
{{- end -}}
{{- $list := list -}}
{{- range $name := keys $found | sortAlpha -}}{{- $list = append $list (get $found $name) -}}{{- end -}}
{{- $_ := set .out "image" $image -}}
{{- $_ := set .out "found" $list -}}
{{- end -}}

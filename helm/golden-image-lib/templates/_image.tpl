{{- /*
What a GoldenImage says of its goldens: pure, and the same as the daemon reads (ImageFacts in src/admission/images.rs), so that a pool is
given the name under which the daemon will make the golden.

golden-image.image.read. Arguments item (the object) and out. Sets
  out.name, out.identity   the identity is empty while a schematic document has no ID
  out.base                 the golden's name without class, empty as long
  out.failed               {reason, message} of the whole image, or {}
  out.targets              a list of {golden, class, size, ready, claimed, failed}; class and size are empty while they are not known

A golden's name is on record once it is begun. Before that it is foreseen: the name without a class belongs to the first golden made, so
until one is on record every target may be that one, and neither class nor size of it is known.
*/ -}}
{{- define "golden-image.image.read" -}}
{{- $out := .out -}}
{{- $spec := get .item "spec" | default dict -}}
{{- $status := get .item "status" | default dict -}}
{{- $name := .item.metadata.name -}}
{{- include "golden-image.image.names" (dict "name" $name "spec" $spec "status" $status "out" $out) -}}
{{- $failed := include "golden-image.image.stalled" $status | fromYaml -}}
{{- if get $spec "retire" -}}{{- $failed = dict "reason" "Retired" "message" "The image is retired." -}}{{- end -}}
{{- $wanted := dig "storage" "targets" (list) $spec | default (list dict) -}}
{{- $classes := list -}}
{{- range $target := $wanted -}}{{- $classes = append $classes (get $target "storageClassName" | default "") -}}{{- end -}}
{{- $targets := list -}}
{{- $names := list -}}
{{- $recorded := list -}}
{{- range $target := (get $status "targets" | default list) -}}
{{-   $golden := get $target "golden" | default "" -}}
{{-   if $golden -}}
{{-     $names = append $names $golden -}}
{{-     $recorded = append $recorded (get $target "requestedClass" | default "") -}}
{{-     $ready := false -}}
{{-     range $condition := (get $target "conditions" | default list) -}}
{{-       if and (eq $condition.type "Ready") (eq $condition.status "True") -}}{{- $ready = true -}}{{- end -}}
{{-     end -}}
{{-     $claimed := not (empty (get $target "claimUID")) -}}
{{-     $trouble := include "golden-image.image.stalled" $target | fromYaml | default $failed -}}
{{-     if not (has (get $target "requestedClass" | default "") $classes) -}}
{{- /* Its target was taken out: nobody finishes what is not made, and one that is there is the fence's. */ -}}
{{-       $trouble = ternary dict (dict "reason" "Retiring" "message" "its target was taken out of the image") $claimed -}}
{{-     else if $ready -}}
{{-       $trouble = dict -}}
{{-     end -}}
{{-     $targets = append $targets (dict "golden" $golden "class" (get $target "storageClassName" | default "") "size" (get $target "size" | default "") "ready" $ready "claimed" $claimed "failed" $trouble) -}}
{{-   end -}}
{{- end -}}
{{- $any := not (empty $recorded) -}}
{{- range $target := (ternary $wanted list (ne $out.base "")) -}}
{{-   $class := get $target "storageClassName" | default "" -}}
{{-   $golden := ternary (printf "%s-%s" $out.base $class) $out.base (and $any (ne $class "")) -}}
{{-   if not (or (has $class $recorded) (has $golden $names)) -}}
{{-     $names = append $names $golden -}}
{{-     $known := or $any (eq (len $wanted) 1) -}}
{{-     $targets = append $targets (dict "golden" $golden "class" (ternary $class "" $known) "size" (ternary (get $target "size" | default "") "" $known) "ready" false "claimed" false "failed" $failed) -}}
{{-   end -}}
{{- end -}}
{{- $_ := set $out "name" $name -}}
{{- $_ := set $out "failed" $failed -}}
{{- $_ := set $out "targets" $targets -}}
{{- end -}}

{{- /* Identity and name, as they follow from the spec and, for a schematic document, from the ID on record. Sets out.identity and out.base. */ -}}
{{- define "golden-image.image.names" -}}
{{- $source := get .spec "source" | default dict | deepCopy -}}
{{- $os := get .spec "operatingSystem" | default dict -}}
{{- $talos := get $source "talosFactory" -}}
{{- if and $talos (not (get $talos "schematicID")) -}}{{- $_ := set $talos "schematicID" (get .status "schematicID" | default "") -}}{{- end -}}
{{- $known := or (get $source "http") (get $source "containerDisk") (get ($talos | default dict) "schematicID") -}}
{{- /* A container disk with a Kubernetes in it is a Kairos image, unless it says what else it is. */ -}}
{{- $family := get $os "family" | default (ternary "kairos" "" (and (hasKey $source "containerDisk") (not (empty (get $os "kubernetesVersion"))))) -}}
{{- $kairos := eq $family "kairos" -}}
{{- $usages := list (ternary "Worker" "VirtualMachine" (or (not (empty $talos)) $kairos)) -}}
{{- if kindIs "slice" (get .spec "usages") -}}{{- $usages = get .spec "usages" -}}{{- end -}}
{{- $identity := get .status "identity" | default "" -}}
{{- $base := "" -}}
{{- if $known -}}
{{-   $identity = include "golden-image.identity" $source -}}
{{-   $base = include "golden-image.name" (merge (dict "image" .name "virtualMachine" (has "VirtualMachine" $usages) "kairos" $kairos) $source) -}}
{{- end -}}
{{- $_ := set .out "identity" $identity -}}
{{- $_ := set .out "base" $base -}}
{{- end -}}

{{- /* The terminal failure that conditions tell, as YAML of {reason, message}; {} without one. Argument: a status or one of its targets. */ -}}
{{- define "golden-image.image.stalled" -}}
{{- $failed := dict -}}
{{- range $condition := (get . "conditions" | default list) -}}
{{-   if and (eq $condition.type "Stalled") (eq $condition.status "True") -}}{{- $failed = dict "reason" $condition.reason "message" $condition.message -}}{{- end -}}
{{- end -}}
{{- toYaml $failed -}}
{{- end -}}

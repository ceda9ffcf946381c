{{- /*
What a render can refuse of the list: R2, R3 and R4, in the words of the daemon (src/catalog/reconcile.rs, src/rules/container.rs and
edit.rs), which holds them too. e2e/charts/entries.yaml is run by both. Templates return only text, so whatever has more than one answer is written into `out`.
*/ -}}

{{- /* The whole check: fails with everything that is wrong with the list, one a line. Argument: the root. */ -}}
{{- define "golden-catalog.entries.check" -}}
{{- if .Values.strictEntries -}}
{{- $out := dict "problems" (list) -}}
{{- $live := list -}}
{{- if .Capabilities.APIVersions.Has "cozystack.io/v1alpha1/GoldenImage" -}}
{{-   $live = (lookup "cozystack.io/v1alpha1" "GoldenImage" "" "").items | default list -}}
{{- end -}}
{{- $list := dict "images" .Values.images "storageClass" .Values.storageClass "storage" .Values.storage "factoryURL" (.Values.factoryURL | default (get .Values "imageFactoryURL")) -}}
{{- include "golden-catalog.entries.judge" (dict "list" $list "live" $live "out" $out) -}}
{{- if $out.problems -}}
{{- fail (printf "\n%s\nNothing was changed. With `strictEntries: false` the daemon tells this and goes on with the other entries." (join "\n" $out.problems)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Pure. Arguments list (images, storageClass, storage, factoryURL), live (GoldenImages), out; adds to out.problems. */ -}}
{{- define "golden-catalog.entries.judge" -}}
{{- $list := .list -}}
{{- $out := .out -}}
{{- $byName := dict -}}
{{- $owners := dict -}}
{{- $born := dict -}}
{{- range $object := .live -}}
{{-   $name := $object.metadata.name -}}
{{-   $_ := set $byName $name $object -}}
{{-   $facts := dict -}}
{{-   include "golden-catalog.facts" (dict "spec" $object.spec "schematicID" (dig "status" "schematicID" "" $object) "out" $facts) -}}
{{- /* Where two objects are one image already, one of them counts as the first: whoever has a golden, then the older one. */ -}}
{{-   $made := 1 -}}
{{-   range dig "status" "targets" list $object -}}{{- if get . "golden" -}}{{- $made = 0 -}}{{- end -}}{{- end -}}
{{-   $place := printf "%d %s %s" $made (get $object.metadata "creationTimestamp" | default "") $name -}}
{{-   range $same := $facts.same -}}
{{-     if or (not (hasKey $owners $same)) (gt (get $born $same) $place) -}}
{{-       $_ := set $owners $same $name -}}
{{-       $_ := set $born $same $place -}}
{{-     end -}}
{{-   end -}}
{{- end -}}
{{- $seen := dict -}}
{{- $goldens := dict -}}
{{- range $index, $given := $list.images -}}
{{-   $without := dict -}}
{{-   include "golden-catalog.said" (dict "given" $given "out" $without) -}}
{{-   $entry := $without.value -}}
{{-   $spec := dict -}}
{{-   include "golden-catalog.spec" (dict "entry" $entry "list" $list "out" $spec) -}}
{{-   $facts := dict -}}
{{-   include "golden-catalog.facts" (dict "spec" $spec "schematicID" "" "out" $facts) -}}
{{-   $form := dict -}}
{{-   include "golden-catalog.entry.errors" (dict "entry" $entry "out" $form) -}}
{{-   $errors := concat $form.errors $facts.errors -}}
{{-   $name := get $entry "name" | default (printf "talos-%s-%s" (get $entry "version") ($facts.identity | trunc 12)) -}}
{{-   $subject := printf "images[%d] (%s)" $index $name -}}
{{-   $problem := "" -}}
{{-   $twin := "" -}}
{{-   range $same := $facts.same -}}
{{-     $first := get $owners $same | default $name -}}
{{-     if and (not $twin) (ne $first $name) -}}{{- $twin = printf "%s is the same image as %s (%s): remove one of them; %s serves both." $subject $first (regexReplaceAll "^their `schematic` is one document.*" $same "their `schematic` is one document") $first -}}{{- end -}}
{{-   end -}}
{{-   if $errors -}}
{{-     $problem = printf "images[%d]%s: %s" $index (ternary (printf " (%s)" (get $entry "name")) "" (not (empty (get $entry "name")))) (join "; " $errors) -}}
{{-   else if hasKey $seen $name -}}
{{-     $problem = printf "%s: another entry of the list has this name: give it a name of its own." $subject -}}
{{-   else if $twin -}}
{{-     $problem = $twin -}}
{{-   else -}}
{{-     $_ := set $seen $name true -}}
{{-     range $same := $facts.same -}}{{- $_ := set $owners $same $name -}}{{- end -}}
{{-     $object := get $byName $name -}}
{{-     if and $object (not (get $object.metadata "deletionTimestamp")) -}}
{{-       $changes := dict -}}
{{-       include "golden-catalog.entries.changes" (dict "object" $object "new" $facts "out" $changes) -}}
{{-       if $changes.list -}}
{{-         $problem = printf "%s was edited in fields that are frozen once its golden exists: %s. Nothing was changed. The supported move is a new entry (a new schematicID and version, or a new name) beside this one: move the pools to it, then retire this one." $subject (join "; " $changes.list) -}}
{{-       end -}}
{{-     end -}}
{{-   end -}}
{{- /* What is there already has its goldens' names on record. */ -}}
{{-   if not (or $problem (hasKey $byName $name)) -}}
{{-     $made := dict "list" (list) -}}
{{-     include "golden-catalog.goldens" (dict "source" $spec.source "facts" $facts "image" $name "out" $made) -}}
{{-     range $golden := $made.list -}}
{{-       if gt (len $golden) 253 -}}
{{-         $problem = printf "%s: its golden %s would have a name of %d characters, and 253 are the most: name a shorter StorageClass, or give the image a shorter name." $subject (include "golden-image.shown" $golden) (len $golden) -}}
{{-       else if ne (get $goldens $golden | default $name) $name -}}
{{-         $problem = printf "%s: its golden %s has the name of one of %s: give the image another name." $subject $golden (get $goldens $golden) -}}
{{-       else -}}
{{-         $_ := set $goldens $golden $name -}}
{{-       end -}}
{{-     end -}}
{{-   end -}}
{{-   if $problem -}}{{- $_ := set $out "problems" (append $out.problems $problem) -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- /* What of an entry is said: null says nothing, at every depth, but in a schematic document, which is its factory's. Arguments given, out; sets out.value. */ -}}
{{- define "golden-catalog.said" -}}
{{- $value := .given -}}
{{- if kindIs "map" .given -}}
{{-   $value = dict -}}
{{-   range $key, $inner := .given -}}
{{-     if eq $key "schematic" -}}
{{-       if not (kindIs "invalid" $inner) -}}{{- $_ := set $value $key $inner -}}{{- end -}}
{{-     else if not (kindIs "invalid" $inner) -}}
{{-       $said := dict -}}
{{-       include "golden-catalog.said" (dict "given" $inner "out" $said) -}}
{{-       $_ := set $value $key $said.value -}}
{{-     end -}}
{{-   end -}}
{{- else if kindIs "slice" .given -}}
{{-   $value = list -}}
{{-   range $inner := .given -}}
{{-     $said := dict -}}
{{-     include "golden-catalog.said" (dict "given" $inner "out" $said) -}}
{{-     $value = append $value $said.value -}}
{{-   end -}}
{{- end -}}
{{- $_ := set .out "value" $value -}}
{{- end -}}

{{- /* The names of the goldens of a new image, as far as a render knows them. Arguments source, facts, image (its name), out; sets out.list. */ -}}
{{- define "golden-catalog.goldens" -}}
{{- $named := dict "image" .image "virtualMachine" (contains "VirtualMachine" .facts.usages) "kairos" (eq .facts.family "kairos") -}}
{{- with get .source "talosFactory" -}}{{- $_ := set $named "talosFactory" . -}}{{- end -}}
{{- $names := list -}}
{{- if .facts.identity -}}
{{-   range $index, $target := .facts.targets -}}
{{-     if or (eq $index 0) $target.class -}}
{{-       $names = append $names (include "golden-image.name" (merge (dict "class" (ternary "" $target.class (eq $index 0))) $named)) -}}
{{-     end -}}
{{-   end -}}
{{- end -}}
{{- $_ := set .out "list" $names -}}
{{- end -}}

{{- /* R4: what differs in frozen fields. Arguments object (the GoldenImage), new (facts), out; sets out.list of texts. */ -}}
{{- define "golden-catalog.entries.changes" -}}
{{- $new := .new -}}
{{- $old := dict -}}
{{- include "golden-catalog.facts" (dict "spec" .object.spec "schematicID" "" "out" $old) -}}
{{- $changes := list -}}
{{- range $field := list "schematicID" "schematic" "version" "platform" "secureBoot" "factoryURL" "reference" "url" "architecture" -}}
{{-   $a := get $old.fields $field | default "none" -}}
{{-   $b := get $new.fields $field | default "none" -}}
{{-   if ne $a $b -}}
{{-     $changes = append $changes (printf "`%s`: %s → %s" $field $a $b) -}}
{{-   else if ne (get $old.exact $field | default "") (get $new.exact $field | default "") -}}
{{- /* What may hold a secret is compared, and not repeated. */ -}}
{{-     $changes = append $changes (printf "`%s`: %s → %s with another query" $field $a $b) -}}
{{-   end -}}
{{- end -}}
{{- /* A digest that somebody else gave the image is theirs, and an entry that says none was not edited (src/api/owned.rs). */ -}}
{{- $givers := list -}}
{{- range $manager := dig "metadata" "managedFields" list .object -}}
{{-   if kindIs "map" (dig "fieldsV1" "f:spec" "f:digest" "" $manager) -}}{{- $givers = append $givers (get $manager "manager") -}}{{- end -}}
{{- end -}}
{{- $theirs := and $givers (not (has "golden-catalog/entries" $givers)) (not $new.digest) -}}
{{- if and $old.digest (not $theirs) (ne $old.digest ($new.digest | default "none")) -}}
{{-   $changes = append $changes (printf "`digest`: %s → %s" $old.digest ($new.digest | default "none")) -}}
{{- end -}}
{{- if ne $old.usages $new.usages -}}
{{-   $changes = append $changes (printf "`usages`: %s → %s" $old.usages $new.usages) -}}
{{- end -}}
{{- $made := list -}}
{{- range $target := dig "status" "targets" list .object -}}
{{-   if get $target "golden" -}}{{- $made = append $made (get $target "requestedClass") -}}{{- end -}}
{{- end -}}
{{- /* A target that is made may be taken out, by no edit that adds another. */ -}}
{{- $had := list -}}
{{- range $target := $old.targets -}}{{- $had = append $had $target.class -}}{{- end -}}
{{- $adds := false -}}
{{- range $target := $new.targets -}}{{- if not (has $target.class $had) -}}{{- $adds = true -}}{{- end -}}{{- end -}}
{{- range $target := $old.targets -}}
{{-   if has $target.class $made -}}
{{-     $text := ternary "removed" $target.text $adds -}}
{{-     range $other := $new.targets -}}{{- if eq $other.class $target.class -}}{{- $text = $other.text -}}{{- end -}}{{- end -}}
{{-     if ne $text $target.text -}}
{{-       $changes = append $changes (printf "`storage.targets (%s)`: %s → %s" ($target.class | default "the default class") $target.text $text) -}}
{{-     end -}}
{{-   end -}}
{{- end -}}
{{- $_ := set .out "list" $changes -}}
{{- end -}}

{{- /* An entry as a GoldenImage's spec, as far as the checks look at one. Arguments entry, list, out. */ -}}
{{- define "golden-catalog.spec" -}}
{{- $entry := .entry -}}
{{- $list := .list -}}
{{- $out := .out -}}
{{- $kind := "talosFactory" -}}
{{- $keys := list "schematicID" "schematic" "version" "platform" "architecture" "secureBoot" "factoryURL" -}}
{{- if get $entry "url" -}}
{{-   $kind = "http" -}}{{- $keys = list "url" "architecture" -}}
{{- else if get $entry "reference" -}}
{{-   $kind = "containerDisk" -}}{{- $keys = list "reference" "architecture" -}}
{{- end -}}
{{- $source := dict -}}
{{- range $key := $keys -}}
{{-   if not (kindIs "invalid" (get $entry $key)) -}}{{- if hasKey $entry $key -}}{{- $_ := set $source $key (get $entry $key) -}}{{- end -}}{{- end -}}
{{- end -}}
{{- if eq $kind "talosFactory" -}}
{{-   with get $entry "imageFactoryURL" | default $list.factoryURL -}}
{{-     if not (hasKey $source "factoryURL") -}}{{- $_ := set $source "factoryURL" . -}}{{- end -}}
{{-   end -}}
{{- end -}}
{{- $_ := set $out "source" (dict $kind $source) -}}
{{- range $key := list "digest" "usages" "operatingSystem" -}}
{{-   with get $entry $key -}}{{- $_ := set $out $key . -}}{{- end -}}
{{- end -}}
{{- with get $entry "os" -}}{{- $_ := set $out "operatingSystem" . -}}{{- end -}}
{{- with get $entry "kubernetesVersion" -}}
{{-   $_ := set $out "operatingSystem" (merge (dict "kubernetesVersion" .) (get $out "operatingSystem" | default dict)) -}}
{{- end -}}
{{- $storage := get $entry "storage" -}}
{{- if kindIs "map" $storage -}}
{{-   $targets := list -}}
{{-   range $target := get $storage "targets" -}}
{{-     if not (hasKey $target "storageClassName") -}}{{- $target = merge (dict "storageClassName" ($list.storageClass | default "")) $target -}}{{- end -}}
{{-     if and $list.storage (not (hasKey $target "size")) -}}{{- $target = merge (dict "size" $list.storage) $target -}}{{- end -}}
{{-     $targets = append $targets $target -}}
{{-   end -}}
{{-   $_ := set $out "storage" (dict "targets" $targets) -}}
{{- else -}}
{{-   $target := dict "storageClassName" (get $entry "storageClass" | default $list.storageClass | default "") -}}
{{-   $given := and (hasKey $entry "storage") (not (kindIs "invalid" $storage)) -}}
{{-   if or $given $list.storage -}}{{- $_ := set $target "size" (ternary $storage $list.storage $given) -}}{{- end -}}
{{-   $_ := set $out "storage" (dict "targets" (list $target)) -}}
{{- end -}}
{{- end -}}

{{- /* What is wrong with a size of so few bytes, or nothing (src/api/parse.rs). Argument: bytes. */ -}}
{{- define "golden-catalog.size.small" -}}
{{- if lt (int64 .) 1048576 -}}
{{-   $shown := include "golden-image.size.show" . -}}
{{- $shown }} {{ ternary "is" "bytes are" (hasSuffix "i" $shown) }} less than any disk has: write the unit too, such as `20Gi`
{{- end -}}
{{- end -}}

{{- /*
What a spec is, defaults applied. Arguments spec, schematicID (what a factory answered, or empty), out. Sets out.identity (empty while a
schematic document has no ID), out.same (all by which two images are known to be one, src/model/same.rs), out.fields (text by name, as a message may show it), out.exact (URLs whole), out.digest, out.usages (text), out.targets (class and text), out.errors.
*/ -}}
{{- define "golden-catalog.facts" -}}
{{- $spec := .spec -}}
{{- $out := .out -}}
{{- $source := $spec.source -}}
{{- $fields := dict -}}
{{- $exact := dict -}}
{{- $errors := list -}}
{{- $identity := "" -}}
{{- $same := list -}}
{{- $family := dig "operatingSystem" "family" "" $spec | lower -}}
{{- with get $source "talosFactory" -}}
{{-   $family = $family | default "talos" -}}
{{-   $id := get . "schematicID" -}}
{{-   $digest := "" -}}
{{-   if $id -}}{{- $_ := set $fields "schematicID" $id -}}{{- else -}}
{{-     $document := get . "schematic" -}}
{{-     if kindIs "string" $document -}}
{{-       $read := fromYaml $document -}}
{{- /* What cannot be read is shown as it is. */ -}}
{{-       if not (hasKey $read "Error") -}}{{- $document = $read -}}{{- end -}}
{{-     end -}}
{{-     $digest = sha256sum (toJson $document) -}}
{{-     $text := toJson $document | replace "\\u003c" "<" | replace "\\u003e" ">" | replace "\\u0026" "&" -}}
{{-     if gt (len $text) 300 -}}{{- $text = printf "%s… (sha256:%s)" (trunc 300 $text) (sha256sum $text) -}}{{- end -}}
{{-     $_ := set $fields "schematic" $text -}}
{{-   end -}}
{{-   $_ := set $fields "version" (get . "version" | toString) -}}
{{-   $_ := set $fields "platform" (get . "platform" | default "openstack") -}}
{{-   $_ := set $fields "secureBoot" (get . "secureBoot" | default false | toString) -}}
{{-   $_ := set $exact "factoryURL" (include "golden-catalog.url" (get . "factoryURL" | default "https://factory.talos.dev")) -}}
{{-   $_ := set $fields "factoryURL" (include "golden-catalog.url.public" (get . "factoryURL" | default "https://factory.talos.dev")) -}}
{{-   $_ := set $fields "architecture" (get . "architecture" | default "amd64") -}}
{{-   with $digest -}}
{{-     $same = append $same (printf "their `schematic` is one document/%s/%s/%s/%s/%s/%s" . $fields.version $fields.platform $fields.architecture $fields.secureBoot $exact.factoryURL) -}}
{{-   end -}}
{{-   $id = $id | default $.schematicID -}}
{{-   if $id -}}{{- $identity = include "golden-image.identity" (dict "talosFactory" (merge (dict "schematicID" $id) .)) -}}{{- end -}}
{{- end -}}
{{- $kubernetes := dig "operatingSystem" "kubernetesVersion" "" $spec | default "" | toString -}}
{{- with get $source "containerDisk" -}}
{{-   if $kubernetes -}}{{- $family = $family | default "kairos" -}}{{- end -}}
{{-   with include "golden-image.tag.error" (dict "reference" .reference "version" $kubernetes) -}}
{{-     $errors = append $errors (printf "`kubernetesVersion`: %s" .) -}}
{{-   end -}}
{{-   $_ := set $fields "reference" .reference -}}
{{-   $_ := set $fields "architecture" (get . "architecture" | default "amd64") -}}
{{-   $identity = include "golden-image.identity" (dict "containerDisk" .) -}}
{{- end -}}
{{- with get $source "http" -}}
{{-   $_ := set $exact "url" (include "golden-catalog.url" .url) -}}
{{-   $_ := set $fields "url" (include "golden-catalog.url.public" .url) -}}
{{-   $_ := set $fields "architecture" (get . "architecture" | default "amd64") -}}
{{-   $identity = include "golden-image.identity" (dict "http" (dict "url" (include "golden-catalog.url" .url) "architecture" (get . "architecture"))) -}}
{{- end -}}
{{- if eq $family "kairos" -}}
{{-   if and (hasKey $source "containerDisk") (not $kubernetes) -}}
{{-     $errors = append $errors "`kubernetesVersion`: must be given for a Kairos image, with its distribution, such as `v1.35.6+k3s1`: nothing else says which Kubernetes is in the disk (R2)" -}}
{{-   else if and $kubernetes (not (hasKey $source "containerDisk")) -}}
{{-     $errors = append $errors "`kubernetesVersion`: comes together with a container disk's `reference` or not at all: only a pinned digest ties a version to a disk (R2)" -}}
{{-   end -}}
{{- end -}}
{{- $usages := get $spec "usages" | default (list (ternary "Worker" "VirtualMachine" (or (hasKey $source "talosFactory") (eq $family "kairos")))) -}}
{{- $known := list -}}
{{- range $usage := list "Worker" "VirtualMachine" -}}{{- if has $usage $usages -}}{{- $known = append $known $usage -}}{{- end -}}{{- end -}}
{{- $targets := list -}}
{{- $classes := list -}}
{{- range $index, $target := dig "storage" "targets" (list (dict)) $spec -}}
{{-   $text := "size of the image" -}}
{{-   $class := get $target "storageClassName" | default "" | toString -}}
{{-   if has $class $classes -}}{{- $errors = append $errors (printf "`storage.targets[%d].storageClassName`: each StorageClass may be named once" $index) -}}{{- end -}}
{{-   $classes = append $classes $class -}}
{{-   if hasKey $target "size" -}}
{{-     $size := dict -}}
{{-     include "golden-image.size" (dict "given" $target.size "out" $size) -}}
{{-     if $size.error -}}{{- $errors = append $errors (printf "`%s`: %s" (ternary "storage" (printf "storage.targets[%d].size" $index) (eq $index 0)) $size.error) -}}
{{-     else -}}
{{-       $text = include "golden-image.size.show" $size.bytes -}}
{{-       with include "golden-catalog.size.small" $size.bytes -}}{{- $errors = append $errors (printf "`%s`: %s" (ternary "storage" (printf "storage.targets[%d].size" $index) (eq $index 0)) .) -}}{{- end -}}
{{-     end -}}
{{-   end -}}
{{-   with get $target "volumeMode" -}}{{- $text = printf "%s, %s" $text . -}}{{- end -}}
{{-   with get $target "accessModes" -}}{{- $text = printf "%s, %s" $text (join "+" .) -}}{{- end -}}
{{-   $targets = append $targets (dict "class" $class "text" $text) -}}
{{- end -}}
{{- $_ := set $out "identity" $identity -}}
{{- with $identity -}}{{- $same = prepend $same (printf "identity %s" .) -}}{{- end -}}
{{- $_ := set $out "same" $same -}}
{{- $_ := set $out "family" $family -}}
{{- $_ := set $out "fields" $fields -}}
{{- $_ := set $out "exact" $exact -}}
{{- $_ := set $out "digest" (get $spec "digest") -}}
{{- $_ := set $out "usages" (join ", " $known) -}}
{{- $_ := set $out "targets" $targets -}}
{{- $_ := set $out "errors" $errors -}}
{{- end -}}

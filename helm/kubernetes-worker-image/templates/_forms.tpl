{{- /*
The form of an entry, as far as the values' schema leaves it: what kind it is and what goes with it, R1, R2, R18 and addresses, in the words
of the daemon (src/catalog/entry.rs, src/api/parse.rs, src/model). Arguments entry, out; sets out.errors.
*/ -}}
{{- define "golden-catalog.entry.errors" -}}
{{- $entry := dict -}}
{{- range $key, $value := .entry -}}{{- if not (kindIs "invalid" $value) -}}{{- $_ := set $entry $key $value -}}{{- end -}}{{- end -}}
{{- $errors := list -}}
{{- $kinds := list -}}
{{- range $key := list "schematicID" "schematic" "url" "reference" -}}
{{-   if hasKey $entry $key -}}{{- $kinds = append $kinds $key -}}{{- end -}}
{{- end -}}
{{- $kind := first $kinds -}}
{{- if ne (len $kinds) 1 -}}
{{-   $found := ternary (printf "it has `%s`" (join "` and `" $kinds)) "it has none" (gt (len $kinds) 0) -}}
{{-   $errors = append $errors (printf "`url`: an entry has exactly one of `schematicID`, `schematic`, `url` and `reference`; %s" $found) -}}
{{- else if has $kind (list "url" "reference") -}}
{{-   range $key := list "version" "platform" "secureBoot" "factoryURL" "imageFactoryURL" -}}
{{-     if hasKey $entry $key -}}{{- $errors = append $errors (printf "`%s`: belongs to Talos entries, not to one with `%s`" $key $kind) -}}{{- end -}}
{{-   end -}}
{{- else if not (hasKey $entry "version") -}}
{{-   $errors = append $errors "`version`: must be given, such as `v1.13.6`" -}}
{{- end -}}
{{- if not (or (hasKey $entry "name") (has "schematicID" $kinds)) -}}
{{-   $errors = append $errors "`name`: must be given: only an entry with `schematicID` and `version` gets a name of its own" -}}
{{- end -}}
{{- with get $entry "schematicID" | toString -}}
{{-   with include "golden-image.schematicID.error" . -}}{{- $errors = append $errors (printf "`schematicID`: %s" .) -}}{{- end -}}
{{- else -}}
{{-   if hasKey $entry "schematicID" -}}{{- $errors = append $errors (printf "`schematicID`: %s" (include "golden-image.schematicID.error" "")) -}}{{- end -}}
{{- end -}}
{{- if and (hasKey $entry "version") (not (has $kind (list "url" "reference"))) -}}
{{-   with include "golden-image.version.error" $entry.version -}}{{- $errors = append $errors (printf "`version`: %s" .) -}}{{- end -}}
{{- end -}}
{{- range $key := list "url" "factoryURL" "imageFactoryURL" -}}
{{-   if hasKey $entry $key -}}
{{-     with include "golden-catalog.url.error" (get $entry $key) -}}{{- $errors = append $errors (printf "`%s`: %s" $key .) -}}{{- end -}}
{{-   end -}}
{{- end -}}
{{- if and (hasKey $entry "factoryURL") (hasKey $entry "imageFactoryURL") -}}
{{-   $errors = append $errors "`imageFactoryURL`: is the former spelling of `factoryURL`: write only one of them" -}}
{{- end -}}
{{- if hasKey $entry "reference" -}}
{{-   with include "golden-image.reference.error" $entry.reference -}}{{- $errors = append $errors (printf "`reference`: %s" .) -}}{{- end -}}
{{-   $registry := regexFind "^[^/]*[.:][^/]*/|^localhost[^/]*/" $entry.reference | trimSuffix "/" -}}
{{-   $remedy := include "golden-catalog.authority.error" $registry -}}
{{-   if and $registry $remedy (not (include "golden-image.reference.error" $entry.reference)) -}}
{{-     $errors = append $errors (printf "`reference`: must begin with the registry's host, and its port where it has one of its own; it %s" $remedy) -}}
{{-   end -}}
{{-   if hasKey $entry "digest" -}}{{- $errors = append $errors "`digest`: is not for container disks: their `reference` pins them (R2)" -}}{{- end -}}
{{- end -}}
{{- if hasKey $entry "schematic" -}}
{{-   $document := $entry.schematic -}}
{{-   $text := ternary $document (toJson $document) (kindIs "string" $document) -}}
{{-   if gt (len (splitList "" $text)) 65536 -}}
{{-     $errors = append $errors "`schematic`: must be at most 64 KiB" -}}
{{-   else if kindIs "string" $document -}}
{{- /* Lines of comments, an end and a beginning of documents are none; what is left must be one map. */ -}}
{{-     $bare := regexReplaceAll "(?m)^(\\s*#.*|---\\s*|%.*)$" (regexReplaceAll "(?m)^\\.\\.\\.\\s*$" $document "") "" | trim -}}
{{-     $parts := regexFindAll "(?m)^---(\\s|$)" (regexReplaceAll "^(\\s*(#.*)?\\n|%.*\\n)*---" $document "") -1 -}}
{{-     $read := fromYaml $document -}}
{{-     if gt (len $parts) 0 -}}
{{-       $errors = append $errors "`schematic`: must be one YAML document: take out the `---` that begins another one, even an empty one" -}}
{{-     else if and (hasKey $read "Error") (regexMatch "(?m)^%YAML" $document) -}}
{{-       $errors = append $errors "`schematic`: must be a schematic document without a `%YAML` line, since Helm reads YAML 1.1 alone: take the line out, and the `---` below it" -}}
{{-     else if or (not $bare) (hasKey $read "Error") (has $bare (list "null" "~")) -}}
{{-       $errors = append $errors "`schematic`: must be a schematic document, such as `customization: {}`" -}}
{{-     else -}}
{{-       with include "golden-catalog.yaml.doubled" $document -}}
{{-         $errors = append $errors (printf "`schematic`: must be a schematic document in YAML: the key `%s` is given twice: keep one of them" .) -}}
{{-       end -}}
{{-     end -}}
{{-   end -}}
{{- end -}}
{{- $os := "operatingSystem" -}}
{{- if hasKey $entry "os" -}}
{{-   $os = "os" -}}
{{-   if hasKey $entry "operatingSystem" -}}{{- $errors = append $errors "`os`: is the former spelling of `operatingSystem`: write only one of them" -}}{{- end -}}
{{- end -}}
{{- if and (hasKey $entry "kubernetesVersion") (hasKey (get $entry $os | default dict) "kubernetesVersion") -}}
{{-   $errors = append $errors (printf "`kubernetesVersion`: stands under `%s` too: write only one of them" $os) -}}
{{- end -}}
{{- if and (kindIs "map" (get $entry "storage")) (hasKey $entry "storageClass") -}}
{{-   $errors = append $errors "`storageClass`: is short for one target: leave it out beside `storage.targets`" -}}
{{- end -}}
{{- $access := dict -}}
{{- include "golden-catalog.access.error" (dict "entry" $entry "out" $access) -}}
{{- with $access.error -}}{{- $errors = append $errors . -}}{{- end -}}
{{- $_ := set .out "errors" $errors -}}
{{- end -}}

{{- /*
A key that stands twice in one map of a YAML text, or nothing. `fromYaml` takes the last one without a word; but written out again it has
then fewer lines with that key. Nothing is said of a text with what has lines that may look like keys and are none: blocks of text, quotes over several
lines, merges. `plan` and the daemon tell it of those too.
*/ -}}
{{- define "golden-catalog.yaml.doubled" -}}
{{- $key := "(?m)^ *(- +)*(\"[^\"\\n]*\"|'[^'\\n]*'|[^\\s#'\"{\\[&*!|>%@,:-][^#:\\n]*)[ \\t]*:(\\s|$)" -}}
{{- $text := regexReplaceAll "(?m)^\\s*#.*$" . "" -}}
{{- if not (regexMatch "(?m)([|>][-+0-9]*[ \\t]*(#.*)?$|<<|^[^\"\\n]*\"([^\"\\n]*\"[^\"\\n]*\")*[^\"\\n]*$|^[^'\\n]*'([^'\\n]*'[^'\\n]*')*[^'\\n]*$)" $text) -}}
{{-   $counts := dict -}}
{{-   range $index, $form := list $text (toYaml (fromYaml $text)) -}}
{{-     range regexFindAll $key $form -1 -}}
{{-       $name := regexReplaceAll "^ *(- +)*|[ \\t]*:\\s*$" . "" | trimAll "\"'" -}}
{{-       $_ := set $counts $name (add (get $counts $name | default 0) (ternary 1 -1 (eq $index 0))) -}}
{{-     end -}}
{{-   end -}}
{{- /* A key such as `on` is written out as another word, and is not missing. */ -}}
{{-   $missing := 0 -}}
{{-   range values $counts -}}{{- $missing = add $missing . -}}{{- end -}}
{{-   if gt $missing 0 -}}
{{-     range $name, $count := $counts -}}{{- if gt $count 0 -}}{{- $name -}}{{- break -}}{{- end -}}{{- end -}}
{{-   end -}}
{{- end -}}
{{- end -}}

{{- /* R18, as src/api/parse.rs and src/model/access.rs spell it. Arguments entry, out; sets out.error. */ -}}
{{- define "golden-catalog.access.error" -}}
{{- $entry := .entry -}}
{{- $out := .out -}}
{{- $part := "[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?" -}}
{{- $domain := "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?" -}}
{{- $where := "`access.namespaceSelector`: \"namespaceSelector\" is not a valid namespace selector:" -}}
{{- if not (hasKey $entry "access") -}}
{{-   if hasKey $entry "credentialsSecretRef" -}}
{{-     $_ := set $out "error" "`access`: must be given beside `credentialsSecretRef`: `{policy: AllTenants}`, or `{policy: Selected, namespaceSelector: …}` (R18); what needs a password must not reach every tenant by default" -}}
{{-   end -}}
{{- else if ne (eq $entry.access.policy "Selected") (kindIs "map" (get $entry.access "namespaceSelector")) -}}
{{-   $_ := set $out "error" "`access.namespaceSelector`: goes with `policy: Selected`, and only with it" -}}
{{- else if eq $entry.access.policy "Selected" -}}
{{-   $labels := get $entry.access.namespaceSelector "matchLabels" | default dict -}}
{{-   $expressions := get $entry.access.namespaceSelector "matchExpressions" | default list -}}
{{-   if not (or $labels $expressions) -}}
{{-     $_ := set $out "error" (printf "%s it selects every namespace: write `policy: AllTenants` if that is meant" $where) -}}
{{-   end -}}
{{-   $keys := keys $labels | sortAlpha -}}
{{-   $values := values $labels -}}
{{-   range $one := $expressions -}}
{{-     $keys = append $keys $one.key -}}
{{-     $given := get $one "values" | default list -}}
{{-     $values = concat $values $given -}}
{{-     if ne (has $one.operator (list "In" "NotIn")) (gt (len $given) 0) -}}
{{-       $_ := set $out "error" (printf "%s the expression about %q must have the operator `In` or `NotIn` with values, or `Exists` or `DoesNotExist` without" $where $one.key) -}}
{{-     end -}}
{{-   end -}}
{{-   range $value := $values -}}
{{-     if and $value (not (regexMatch (printf "^%s$" $part) $value)) -}}
{{-       $_ := set $out "error" (printf "%s %q is not the value of a label, so no namespace can have it: at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends" $where $value) -}}
{{-     end -}}
{{-   end -}}
{{-   range $key := $keys -}}
{{-     if or (not (regexMatch (printf "^(%s(\\.%s)*/)?%s$" $domain $domain $part) $key)) (gt (len (regexFind "^[^/]*/" $key)) 254) -}}
{{-       $_ := set $out "error" (printf "%s %q is not the key of a label, so no namespace can have it: write it as `team` or `example.org/team`" $where $key) -}}
{{-     end -}}
{{-   end -}}
{{- end -}}
{{- end -}}

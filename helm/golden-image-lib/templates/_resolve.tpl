{{- /*
Which image a pool boots from: pure, without a cluster. The rules are those of the WorkerClass contract, in this order: the class's
baseline, the pool's overrides, then whether the result agrees with what the class fixes.

golden-image.resolve. Arguments:
  subject            who is told about a refusal
  osImage            the pool's value, nil when it is absent (absent and {} differ: {} selects the factory, whatever the class says)
  class              nil for a classless pool, else {name, bootstrap, talos, image, osImage} (golden-image.workerClass reads one)
  talosDefaults      the platform's Talos settings
  talos              what the pool itself set: chart defaults must not be mixed in, or a default would pass for a tenant's choice
  kubernetesVersion  the pool's minor, such as v1.35
  platformImage      optional: {reference, kubernetesVersion} of the platform's Kairos image for that minor
  out
Sets out.error, or:
  family             talos or kairos
  kind               http (import from a factory), golden (clone), or registry (the platform's public Kairos disk)
  version, schematicID, installer, url, factoryCA        for Talos
  kubernetesVersion                                      of a Kairos image: the exact patch of the Machine
  identity, golden                                       of a clone: the golden's name where it can be told without a cluster
  talos                                                  the effective settings
*/ -}}
{{- define "golden-image.resolve" -}}
{{- $class := .class | default dict -}}
{{- $family := get $class "bootstrap" | default "talos" -}}
{{- $_ := set .out "family" $family -}}
{{- if eq $family "talos" -}}
{{-   include "golden-image.resolve.talos" . -}}
{{- else if eq $family "kairos" -}}
{{-   include "golden-image.resolve.kairos" . -}}
{{- else -}}
{{-   include "golden-image.refuse" (dict "out" .out "message" "unknownFamily" "with" (dict "subject" .subject "class" (get $class "name") "family" $family)) -}}
{{- end -}}
{{- end -}}

{{- /*
A pool's effective Talos settings: later layers replace earlier ones key by key and as a unit, so that a pool's `registryMirrors: {}`
clears the class's instead of merging with it, and an explicit empty text stays empty. A null is an absent key.
*/ -}}
{{- define "golden-image.talos" -}}
{{- range $layer := .layers -}}
{{-   range $key, $value := ($layer | default dict) -}}
{{-     if not (kindIs "invalid" $value) -}}{{- $_ := set $.out $key $value -}}{{- end -}}
{{-   end -}}
{{- end -}}
{{- end -}}

{{- define "golden-image.resolve.talos" -}}
{{- $subject := .subject -}}
{{- $out := .out -}}
{{- $class := .class | default dict -}}
{{- $pool := .talos | default dict -}}
{{- $talos := dict -}}
{{- include "golden-image.talos" (dict "out" $talos "layers" (list .talosDefaults (get $class "talos") $pool)) -}}
{{- $_ := set $out "talos" $talos -}}
{{- /* One source is selected as a unit: the pool's, else the class's, else the factory. */ -}}
{{- $fromPool := not (kindIs "invalid" .osImage) -}}
{{- $selected := .osImage -}}
{{- if not $fromPool -}}{{- $selected = get $class "osImage" | default dict -}}{{- end -}}
{{- if not (kindIs "map" $selected) -}}
{{-   include "golden-image.refuse" (dict "out" $out "message" "osImageShape" "with" (dict "subject" $subject "given" (toJson $selected))) -}}
{{- else -}}
{{-   range $key, $_ := $selected -}}
{{-     if not (has $key (list "builtin" "factory")) -}}
{{-       include "golden-image.refuse" (dict "out" $out "message" "osImageShape" "with" (dict "subject" $subject "given" (printf "`%s`" $key))) -}}
{{-     end -}}
{{-   end -}}
{{- /* A key with nothing behind it (`builtin:`) counts: it means "clone, with the pool's talos.*". */ -}}
{{-   if and (hasKey $selected "builtin") (hasKey $selected "factory") -}}
{{-     include "golden-image.refuse" (dict "out" $out "message" "bothSources" "with" (dict "subject" $subject)) -}}
{{-   end -}}
{{-   $member := "factory" -}}
{{-   if hasKey $selected "builtin" -}}{{- $member = "builtin" -}}{{- end -}}
{{- /* A field that is misspelled would clone the default image in silence. */ -}}
{{-   $fields := ternary (list "version" "schematicID") (list "version" "schematicID" "imageFactoryURL") (eq $member "builtin") -}}
{{-   $source := get $selected $member -}}
{{-   $odd := "" -}}
{{-   if or (kindIs "invalid" $source) (and (kindIs "string" $source) (not $source)) -}}
{{-     $source = dict -}}
{{-   else if kindIs "map" $source -}}
{{-     range $key, $_ := $source -}}{{- if not (or $odd (has $key $fields)) -}}{{- $odd = printf "`%s`" $key -}}{{- end -}}{{- end -}}
{{-   else -}}
{{-     $odd = toJson $source -}}
{{-     $source = dict -}}
{{-   end -}}
{{-   if $odd -}}
{{-     include "golden-image.refuse" (dict "out" $out "message" "osImageMember" "with" (dict "subject" $subject "member" $member "fields" (printf "`%s`" (join "`, `" $fields)) "given" $odd)) -}}
{{-   end -}}
{{-   $_ := set $out "kind" (ternary "golden" "http" (eq $member "builtin")) -}}
{{-   range $field := list "version" "schematicID" -}}
{{-     $value := get $source $field | default (get $talos $field) | default "" | toString -}}
{{-     $_ := set $out $field $value -}}
{{-     $explicit := and (hasKey $pool $field) (not (kindIs "invalid" (get $pool $field))) -}}
{{-     $pinnedByPool := and $fromPool (get $source $field) -}}
{{-     if and $explicit (eq (get $pool $field | toString) "") (not $pinnedByPool) -}}
{{-       include "golden-image.refuse" (dict "out" $out "message" "emptyScalar" "with" (dict "subject" $subject "field" $field)) -}}
{{-     end -}}
{{-     if $class -}}
{{- /* A class that names a golden declares what it is, and no source of the pool's may contradict that. */ -}}
{{-       $named := get (get $class "osImage" | default dict) "builtin" -}}
{{-       $fixed := get (ternary $named dict (kindIs "map" $named)) $field | default "" | toString -}}
{{-       if and $fixed (ne $fixed $value) -}}
{{-         include "golden-image.refuse" (dict "out" $out "message" "conflict" "with" (dict "subject" $subject "field" $field "resolved" $value "fixed" $fixed "source" (printf "class %s" (get $class "name")))) -}}
{{-       end -}}
{{- /* And a tenant's explicit setting is never dropped in silence because the class's source pins another value. */ -}}
{{-       if and $explicit (not $fromPool) (ne (get $pool $field | toString) $value) -}}
{{-         include "golden-image.refuse" (dict "out" $out "message" "conflict" "with" (dict "subject" $subject "field" $field "resolved" (get $pool $field) "fixed" $value "source" (printf "class %s" (get $class "name")))) -}}
{{-       end -}}
{{-     end -}}
{{-   end -}}
{{-   include "golden-image.resolve.check" (dict "out" $out "subject" $subject "legacy" (and (not $fromPool) (not $class))) -}}
{{- /* Disk and installer come from the same two values, so a node can never upgrade itself onto another image than it booted. */ -}}
{{-   $_ := set $out "installer" (printf "%s/%s:%s" (get $talos "installerRepository") $out.schematicID $out.version) -}}
{{- /* A pool that sets neither source nor class renders what it always did. */ -}}
{{-   if and (or $class $fromPool) (hasKey $pool "installerRepository") (eq (get $pool "installerRepository" | toString) "") -}}
{{-     include "golden-image.refuse" (dict "out" $out "message" "emptyScalar" "with" (dict "subject" $subject "field" "installerRepository")) -}}
{{-   end -}}
{{-   if eq $out.kind "http" -}}
{{-     include "golden-image.resolve.http" (dict "out" $out "subject" $subject "factory" (get $source "imageFactoryURL" | default (get $talos "imageFactoryURL") | default "" | toString)) -}}
{{-   else -}}
{{-     $image := dict "talosFactory" (dict "version" $out.version "schematicID" $out.schematicID) -}}
{{-     $_ := set $out "identity" (include "golden-image.identity" $image) -}}
{{-     $_ := set $out "golden" (include "golden-image.name" $image) -}}
{{-   end -}}
{{- end -}}
{{- end -}}

{{- /*
R1 on what was resolved. A pool without osImage and without class is held to what today's chart accepts (a pre-release too), because it
must go on rendering to the byte; what is refused here is refused there.
*/ -}}
{{- define "golden-image.resolve.check" -}}
{{- $schematic := include "golden-image.schematicID.error" .out.schematicID -}}
{{- $version := include "golden-image.version.error" .out.version -}}
{{- if .legacy -}}
{{-   if regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" .out.schematicID -}}{{- $schematic = "" -}}{{- end -}}
{{-   if regexMatch "^v[0-9]+\\.[0-9]+\\.[0-9]+(-[0-9a-z.]+)?$" .out.version -}}{{- $version = "" -}}{{- end -}}
{{- end -}}
{{- if $schematic -}}
{{-   include "golden-image.refuse" (dict "out" .out "message" "invalidValue" "with" (dict "subject" .subject "field" "schematicID" "error" $schematic)) -}}
{{- end -}}
{{- if $version -}}
{{-   include "golden-image.refuse" (dict "out" .out "message" "invalidValue" "with" (dict "subject" .subject "field" "version" "error" $version)) -}}
{{- end -}}
{{- end -}}

{{- /* The HTTP path: the address of the disk, and whom to trust for it. A cloning pool uses neither, so neither is checked there. */ -}}
{{- define "golden-image.resolve.http" -}}
{{- if not (regexMatch "^https?://[A-Za-z0-9._~:/?#\\[\\]@!&'()*+,;=%-]+$" .factory) -}}
{{-   include "golden-image.refuse" (dict "out" .out "message" "invalidValue" "with" (dict "subject" .subject "field" "imageFactoryURL" "error" (printf "%s is not a valid URL: must be an absolute `https://` or `http://` URL with a host" (include "golden-image.shown" .factory)))) -}}
{{- end -}}
{{- $_ := set .out "url" (printf "%s/image/%s/%s/openstack-amd64.raw.xz" (trimSuffix "/" .factory) .out.schematicID .out.version) -}}
{{- $ca := get .out.talos "imageFactoryCA" | default "" | toString | trim -}}
{{- if $ca -}}
{{-   if contains "PRIVATE KEY" $ca -}}
{{-     include "golden-image.refuse" (dict "out" .out "message" "privateKey" "with" (dict "subject" .subject)) -}}
{{-   else if not (regexMatch "^(-----BEGIN CERTIFICATE-----\\s+[A-Za-z0-9+/=\\s]+-----END CERTIFICATE-----\\s*)+$" $ca) -}}
{{-     include "golden-image.refuse" (dict "out" .out "message" "notCertificates" "with" (dict "subject" .subject)) -}}
{{-   end -}}
{{-   $_ := set .out "factoryCA" $ca -}}
{{- end -}}
{{- end -}}

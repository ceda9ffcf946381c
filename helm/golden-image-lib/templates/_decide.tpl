{{- /*
What a consumer's disk looks like, given what the cluster holds: pure. The guards are R13 to R16 as far as a render can know them; the
daemon's admission holds them again on every disk, live.

golden-image.decide. Arguments:
  subject       who is told about a refusal; it is also the pool annotation
  namespace     the catalog's
  resolved      of golden-image.resolve or golden-image.resolve.disk
  observed      of golden-image.observe; {} without a cluster, where nothing is guarded
  pool          {reference, machineDeployment, diskName} for worker disks
  storageClass  what the consumer states, may be empty
  diskSize      may be empty, then the size is not guarded
  out
Sets out.error, or:
  clone                    true for a clone
  golden, pool, identity   what the disk's annotations say, each may be empty
  storageClass             what the disk states; empty leaves it to the cluster (HTTP path)
*/ -}}
{{- define "golden-image.decide" -}}
{{- $out := .out -}}
{{- $_ := set $out "storageClass" (.storageClass | default "") -}}
{{- $_ := set $out "clone" (eq .resolved.kind "golden") -}}
{{- if and $out.clone .observed.cluster -}}
{{-   include "golden-image.decide.clone" . -}}
{{- else if $out.clone -}}
{{-   if not .resolved.golden -}}
{{-     include "golden-image.refuse" (dict "out" $out "message" "kairosOffline" "with" (dict "subject" .subject "class" (get .resolved "class" | default "") "identity" .resolved.identity)) -}}
{{-   end -}}
{{-   $_ := set $out "golden" .resolved.golden -}}
{{-   $_ := set $out "pool" .subject -}}
{{- end -}}
{{- end -}}

{{- define "golden-image.decide.clone" -}}
{{- $subject := .subject -}}
{{- $out := .out -}}
{{- $observed := .observed -}}
{{- $template := get $observed "template" | default dict -}}
{{- $mine := dict -}}
{{- if .pool -}}
{{-   include "golden-image.disks.own" (dict "disks" $observed.disks "pool" .pool "siblings" $observed.siblings "out" $mine) -}}
{{- end -}}
{{- $disks := get $mine "disks" | default list -}}
{{- $class := include "golden-image.class.frozen" (dict "stated" .storageClass "disks" $disks "template" $template "classes" $observed.classes) -}}
{{- $goldens := dict -}}
{{- include "golden-image.goldens" (dict "resolved" .resolved "observed" $observed "class" $class "out" $goldens) -}}
{{- $image := $goldens.image -}}
{{- $shown := .resolved.golden | default (get $image "name") | default .resolved.identity -}}
{{- $targets := list -}}
{{- $chosen := dict -}}
{{- range $candidate := $goldens.found -}}
{{-   $targets = append $targets (printf "%s (%s)" ($candidate.class | default "a class not known yet") $candidate.name) -}}
{{- /* The golden that the pool's template names stays chosen while it fits: a pool is never rolled by a second one that appears. */ -}}
{{-   if and (eq $candidate.class $class) (or (not $chosen) (eq $candidate.name (get $template "golden"))) -}}{{- $chosen = $candidate -}}{{- end -}}
{{- end -}}
{{- range $candidate := $goldens.found -}}
{{- /* A target whose class is not known yet may turn out to be ours: admitted (R13). */ -}}
{{-   if and (not $candidate.class) (not $chosen) -}}{{- $chosen = $candidate -}}{{- end -}}
{{- end -}}
{{- $targets = join ", " $targets -}}
{{- /* The golden this pool has cloned before, which lifts the guards on a golden that is gone or failed: they would stop a release whose
       disks have all they need. CDI tells about the one new disk that cannot be made. */ -}}
{{- $cloned := include "golden-image.cloned" (dict "resolved" .resolved "template" $template "disks" $disks "class" $class) -}}
{{- if and (not $class) (not $cloned) -}}
{{-   include "golden-image.refuse" (dict "out" $out "message" "noClass" "with" (dict "subject" $subject "golden" $shown "targets" $targets)) -}}
{{- else if and (not $chosen) $goldens.found -}}
{{-   $other := first $goldens.found -}}
{{-   include "golden-image.refuse" (dict "out" $out "message" "classMismatch" "with" (dict "subject" $subject "class" $class "golden" $other.name "goldenClass" $other.class "targets" $targets)) -}}
{{- else if and (not $chosen) $cloned -}}
{{-   $chosen = dict "name" $cloned -}}
{{- else if and (not $chosen) $image -}}
{{- /* Known, and nothing about its targets yet: admitted under the name its first target gets (R13). */ -}}
{{-   $chosen = dict "name" (.resolved.golden | default (include "golden-image.name" (dict "image" $image.name "kairos" true))) -}}
{{- else if not $chosen -}}
{{-   include "golden-image.refuse" (dict "out" $out "message" "noGolden" "with" (dict "subject" $subject "golden" $shown "namespace" .namespace)) -}}
{{- end -}}
{{- if $chosen -}}
{{-   $used := or $cloned (eq (get $template "golden") $chosen.name) -}}
{{-   if and (get $chosen "failed") (not $cloned) -}}
{{-     include "golden-image.refuse" (dict "out" $out "message" "goldenFailed" "with" (dict "subject" $subject "golden" $chosen.name "error" $chosen.failed)) -}}
{{-   end -}}
{{-   if and (get $chosen "retiring") (not $used) -}}
{{-     include "golden-image.refuse" (dict "out" $out "message" "goldenRetiring" "with" (dict "subject" $subject "golden" $chosen.name)) -}}
{{-   end -}}
{{-   include "golden-image.decide.size" (dict "out" $out "subject" $subject "diskSize" .diskSize "golden" $chosen "class" $class "observed" $observed) -}}
{{-   $_ := set $out "golden" $chosen.name -}}
{{-   $_ := set $out "storageClass" $class -}}
{{- /* A template made by the former chart names the pool in another form. While nothing else changes its text is kept, because the
         template's name is a hash of its text and a new name replaces every worker. */ -}}
{{-   $same := and (eq (get $template "golden") $chosen.name) (eq (get $template "class") $class) -}}
{{-   $_ := set $out "pool" (ternary (get $template "pool") $subject $same) -}}
{{-   if not .resolved.golden -}}{{- $_ := set $out "identity" .resolved.identity -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- /*
The name of the golden that one of these disks is a finished clone of, if it is this image's. A Talos golden is told by its name; a
container disk's by the identity that the template carries beside it.
*/ -}}
{{- define "golden-image.cloned" -}}
{{- $names := list -}}
{{- if .resolved.golden -}}
{{-   $names = list .resolved.golden (printf "%s-%s" .resolved.golden .class) -}}
{{- else if eq (get .template "identity" | default "") .resolved.identity -}}
{{-   $names = list (get .template "golden") -}}
{{- end -}}
{{- $found := "" -}}
{{- range $disk := .disks -}}
{{-   if and (get $disk "finished") (get $disk "golden") (has $disk.golden $names) (or (not $found) (eq $disk.golden (get $.template "golden"))) -}}{{- $found = $disk.golden -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{- /* R16, in the numbers CDI compares: on a file system both sides are claims with the overhead added. */ -}}
{{- define "golden-image.decide.size" -}}
{{- $disk := dict -}}
{{- $request := dict -}}
{{- $capacity := dict -}}
{{- if .diskSize -}}{{- include "golden-image.size" (dict "given" .diskSize "out" $disk) -}}{{- end -}}
{{- if get .golden "request" -}}{{- include "golden-image.size" (dict "given" .golden.request "out" $request) -}}{{- end -}}
{{- if get .golden "capacity" -}}{{- include "golden-image.size" (dict "given" .golden.capacity "out" $capacity) -}}{{- end -}}
{{- if hasKey $disk "error" -}}
{{-   include "golden-image.refuse" (dict "out" .out "message" "invalidValue" "with" (dict "subject" .subject "field" "diskSize" "error" $disk.error)) -}}
{{- else if and (hasKey $disk "bytes") (hasKey $request "bytes") -}}
{{-   $claim := $disk.bytes -}}
{{-   if eq (get .golden "mode") "Filesystem" -}}
{{-     $overheads := get .observed "overhead" | default dict -}}
{{-     $overhead := get (get $overheads "classes" | default dict) .class | default (get $overheads "global") | default "0.06" -}}
{{-     $claim = include "golden-image.size.inflated" (dict "bytes" $claim "overhead" $overhead) | int64 -}}
{{-   end -}}
{{-   $pair := dict -}}
{{- /* One byte is let through: CDI multiplies in binary fractions and this engine in decimal ones. */ -}}
{{-   if lt (add $claim 1) $request.bytes -}}
{{-     include "golden-image.size.pair" (dict "a" $claim "b" $request.bytes "out" $pair) -}}
{{-     include "golden-image.refuse" (dict "out" .out "message" "tooSmall" "with" (dict "subject" .subject "golden" .golden.name "disk" $pair.a "size" $pair.b)) -}}
{{-   end -}}
{{-   $expandable := true -}}
{{-   range $class := .observed.classes -}}{{- if eq $class.name $.class -}}{{- $expandable = get $class "expandable" -}}{{- end -}}{{- end -}}
{{-   if and (hasKey $capacity "bytes") (not $expandable) (gt $claim (add $capacity.bytes 1)) -}}
{{-     include "golden-image.size.pair" (dict "a" $claim "b" $capacity.bytes "out" $pair) -}}
{{-     include "golden-image.refuse" (dict "out" .out "message" "tooLarge" "with" (dict "subject" .subject "golden" .golden.name "disk" $pair.a "size" $pair.b "class" .class)) -}}
{{-   end -}}
{{- end -}}
{{- end -}}

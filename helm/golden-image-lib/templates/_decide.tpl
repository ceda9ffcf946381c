{{- /*
What a consumer's disk looks like, given what the cluster holds: pure. The guards are R13 to R16 as far as a render can know them; the
daemon's admission holds them again on every disk, live.

golden-image.decide. Arguments:
  subject       who is told about a refusal: KubernetesNodes tenant-a/cluster-pool
  reference     the same as the pool annotation has it: tenant-a/KubernetesNodes/cluster-pool
  namespace     the catalog's
  resolved      of golden-image.resolve or golden-image.resolve.disk
  observed      of golden-image.observe; {} without a cluster, where nothing is guarded
  pool          {machineDeployment, diskName} for worker disks
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
{{-   $_ := set $out "pool" .reference -}}
{{- end -}}
{{- end -}}

{{- define "golden-image.decide.clone" -}}
{{- $out := .out -}}
{{- $resolved := .resolved -}}
{{- $observed := .observed -}}
{{- $template := get $observed "template" | default dict -}}
{{- $mine := dict -}}
{{- if .pool -}}
{{-   include "golden-image.disks.own" (dict "disks" $observed.disks "pool" .pool "reference" .reference "siblings" $observed.siblings "out" $mine) -}}
{{- end -}}
{{- $disks := get $mine "disks" | default list -}}
{{- $frozen := dict -}}
{{- include "golden-image.class.frozen" (dict "stated" .storageClass "disks" $disks "template" $template "classes" $observed.classes "reference" .reference "out" $frozen) -}}
{{- $class := $frozen.class -}}
{{- $goldens := dict -}}
{{- include "golden-image.goldens" (dict "resolved" $resolved "observed" $observed "class" $class "out" $goldens) -}}
{{- /* What fills the braces of every message below. */ -}}
{{- $with := dict "subject" .subject "namespace" .namespace "golden" $resolved.golden "class" $class "from" $frozen.from "pool" .reference "identity" $resolved.identity -}}

{{- $chosen := dict -}}
{{- $elsewhere := list -}}
{{- range $candidate := $goldens.found -}}
{{-   if eq $candidate.class $class -}}
{{- /* The golden that the pool's template names stays chosen while it fits: a pool is never rolled by a second one that appears. */ -}}
{{-     if or (not $chosen) (eq $candidate.name (get $template "golden")) -}}{{- $chosen = $candidate -}}{{- end -}}
{{-   else if $candidate.class -}}
{{-     $elsewhere = append $elsewhere $candidate -}}
{{-   end -}}
{{- end -}}
{{- range $candidate := $goldens.found -}}
{{- /* A target whose class is not known yet may turn out to be ours: admitted (R13). */ -}}
{{-   if and (not $candidate.class) (not $chosen) -}}{{- $chosen = $candidate -}}{{- end -}}
{{- end -}}

{{- /* The golden this pool has cloned before, which lifts the guards on a golden that is gone or failed: they would stop a release whose
       disks have all they need. CDI tells about the one new disk that cannot be made. */ -}}
{{- $cloned := include "golden-image.cloned" (dict "resolved" $resolved "template" $template "disks" $disks "class" $class) -}}

{{- if not (or $goldens.found $goldens.image $cloned) -}}
{{-   if $resolved.golden -}}
{{-     include "golden-image.refuse" (dict "out" $out "message" "noGolden" "with" $with) -}}
{{-   else -}}
{{-     include "golden-image.refuse" (dict "out" $out "message" "noIdentity" "with" (set $with "class" (get $resolved "class" | default ""))) -}}
{{-   end -}}
{{- else if not (or $class $cloned) -}}
{{-   if $elsewhere -}}
{{-     $other := first $elsewhere -}}
{{-     include "golden-image.refuse" (dict "out" $out "message" "noClass" "with" (set (set $with "golden" $other.name) "goldenClass" $other.class)) -}}
{{-   else -}}
{{-     include "golden-image.refuse" (dict "out" $out "message" "noClassYet" "with" $with) -}}
{{-   end -}}
{{- else if and (not $chosen) $cloned -}}
{{- /* Before a golden in another class is pointed at: this pool's own is gone, its disks have all they need. */ -}}
{{-   $chosen = dict "name" $cloned -}}
{{- else if and (not $chosen) $elsewhere -}}
{{-   $other := first $elsewhere -}}
{{-   $targets := list -}}
{{-   range $target := $elsewhere -}}{{- $targets = append $targets (printf "%s in %q" $target.name $target.class) -}}{{- end -}}
{{-   $_ := set (set (set $with "golden" $other.name) "goldenClass" $other.class) "targets" (join ", " $targets) -}}
{{-   include "golden-image.refuse" (dict "out" $out "message" (ternary "classMismatchOfMany" (ternary "classMismatch" "classMismatchAlone" (not (empty $goldens.image))) (gt (len $elsewhere) 1)) "with" $with) -}}
{{- else if not $chosen -}}
{{-   include "golden-image.refuse" (dict "out" $out "message" "unnamed" "with" (set $with "image" $goldens.image.name)) -}}
{{- end -}}

{{- if and $chosen (not (hasKey $out "error")) -}}
{{-   $_ := set $with "golden" $chosen.name -}}
{{-   if not $cloned -}}
{{-     if get $chosen "failed" -}}
{{-       include "golden-image.refuse" (dict "out" $out "message" "goldenFailed" "with" (set (set $with "reason" $chosen.failed.reason) "error" $chosen.failed.message)) -}}
{{-     else if get $chosen "terminating" -}}
{{-       include "golden-image.refuse" (dict "out" $out "message" "goldenTerminating" "with" $with) -}}
{{-     else if get $chosen "retired" -}}
{{-       include "golden-image.refuse" (dict "out" $out "message" "goldenRetired" "with" $with) -}}
{{-     else if and (get $chosen "retiring") (ne (get $template "golden") $chosen.name) -}}
{{-       include "golden-image.refuse" (dict "out" $out "message" "goldenRetiring" "with" $with) -}}
{{-     end -}}
{{-   end -}}
{{-   include "golden-image.decide.size" (dict "out" $out "with" $with "diskSize" .diskSize "golden" $chosen "class" $class "observed" $observed) -}}
{{-   $_ := set $out "golden" $chosen.name -}}
{{-   $_ := set $out "storageClass" $class -}}
{{- /* A template made by the former chart names the pool in another form. While nothing else changes its text is kept, because the
       template's name is a hash of its text and a new name replaces every worker. */ -}}
{{-   $same := and (eq (get $template "golden") $chosen.name) (eq (get $template "class") $class) -}}
{{-   $_ := set $out "pool" (ternary (get $template "pool") .reference $same) -}}
{{-   if not $resolved.golden -}}{{- $_ := set $out "identity" $resolved.identity -}}{{- end -}}
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
{{- /* A disk in another class than the one now wanted says nothing about the disk that would be made. */ -}}
{{-   $same := or (not (get $disk "class")) (eq (get $disk "class") $.class) -}}
{{-   if and $same (get $disk "finished") (get $disk "golden") (has $disk.golden $names) (or (not $found) (eq $disk.golden (get $.template "golden"))) -}}{{- $found = $disk.golden -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{- /*
R16, in the numbers CDI compares: what the golden's claim asks for, and what the disk's claim will. CDI adds a file system's overhead to
the latter and raises it to the class's minimum; both happened to the golden's when it was made.
*/ -}}
{{- define "golden-image.decide.size" -}}
{{- $disk := dict -}}
{{- $request := dict -}}
{{- $capacity := dict -}}
{{- $stated := not (or (kindIs "invalid" .diskSize) (eq (toString .diskSize) "")) -}}
{{- if $stated -}}{{- include "golden-image.quantity" (dict "given" .diskSize "out" $disk) -}}{{- end -}}
{{- if get .golden "request" -}}{{- include "golden-image.quantity" (dict "given" .golden.request "out" $request) -}}{{- end -}}
{{- if get .golden "capacity" -}}{{- include "golden-image.quantity" (dict "given" .golden.capacity "out" $capacity) -}}{{- end -}}
{{- if and $stated (not (hasKey $disk "bytes")) -}}
{{-   include "golden-image.refuse" (dict "out" .out "message" "noSize" "with" (set .with "size" (include "golden-image.size.text" .diskSize | include "golden-image.shown"))) -}}
{{- else if and (hasKey $disk "bytes") (hasKey $request "bytes") -}}
{{-   $claim := $disk.bytes -}}
{{-   $smallest := $request.bytes -}}
{{-   $least := $request.bytes -}}
{{-   if eq (get .golden "mode") "Filesystem" -}}
{{-     $overheads := get .observed "overhead" | default dict -}}
{{-     $overhead := get (get $overheads "classes" | default dict) .class | default (get $overheads "global") | default "0.06" -}}
{{-     $claim = include "golden-image.size.inflated" (dict "bytes" $claim "overhead" $overhead) | int64 -}}
{{-     $smallest = include "golden-image.size.smallest" (dict "bytes" $request.bytes "overhead" $overhead) | int64 -}}
{{-     $least = include "golden-image.size.inflated" (dict "bytes" $smallest "overhead" $overhead) | int64 -}}
{{-   end -}}
{{-   $minimum := dict -}}
{{-   with get (get .observed "minimums" | default dict) .class -}}{{- include "golden-image.quantity" (dict "given" . "out" $minimum) -}}{{- end -}}
{{-   if hasKey $minimum "bytes" -}}{{- $claim = max $claim $minimum.bytes -}}{{- $least = max $least $minimum.bytes -}}{{- end -}}
{{-   $expandable := true -}}
{{-   range $class := .observed.classes -}}{{- if eq $class.name $.class -}}{{- $expandable = get $class "expandable" -}}{{- end -}}{{- end -}}
{{-   $holds := get $capacity "bytes" | default $request.bytes -}}
{{- /* What is told is what then passes: CDI's share comes on top of what is written. One byte is let through: CDI multiplies in binary
       fractions and this engine in decimal ones. */ -}}
{{-   $advice := printf "write a size of %s" (include "golden-image.size.show" $smallest) -}}
{{-   if $expandable -}}
{{-     $advice = printf "%s or more" $advice -}}
{{-   else if gt $least (add $holds 1) -}}
{{-     $advice = printf "no size in `spec.storage` fits: use `spec.pvc`, to which nothing is added, with a size of %s" (include "golden-image.size.show" $request.bytes) -}}
{{-   end -}}
{{-   $with := set .with "advice" $advice -}}
{{- /* Of a device CDI compares what is written, before the class's minimum is put in its place. */ -}}
{{-   $counted := $claim -}}
{{-   if eq (get .golden "mode") "Block" -}}{{- $counted = $disk.bytes -}}{{- end -}}
{{-   $pair := dict -}}
{{-   if lt (add $counted 1) $request.bytes -}}
{{-     include "golden-image.size.pair" (dict "a" $counted "b" $request.bytes "out" $pair) -}}
{{-     include "golden-image.refuse" (dict "out" .out "message" "tooSmall" "with" (set (set $with "small" $pair.a) "large" $pair.b)) -}}
{{-   end -}}
{{-   if and (not $expandable) (gt $claim (add $holds 1)) (not (hasKey .out "error")) -}}
{{-     include "golden-image.size.pair" (dict "a" $holds "b" $claim "out" $pair) -}}
{{-     include "golden-image.refuse" (dict "out" .out "message" "tooLarge" "with" (set (set $with "held" $pair.a) "wanted" $pair.b)) -}}
{{-   end -}}
{{- end -}}
{{- end -}}

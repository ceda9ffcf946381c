{{- /*
StorageClasses: R14 and R15, pure.

golden-image.class.default: the class a disk without one gets. CDI takes the virtualization default before the cluster's, and the newest
of several, then the first by name (GetPlatformDefaultStorageClass in CDI's pkg/controller/common). A class that carries only the beta
annotation comes last: CDI does not read it, but Kubernetes does, and today's pool chart resolves it.
Argument: the observed classes, each {name, created, default, virtDefault, betaDefault}. Returns a name or nothing.
*/ -}}
{{- define "golden-image.class.default" -}}
{{- $found := "" -}}
{{- range $kind := list "virtDefault" "default" "betaDefault" -}}
{{-   if not $found -}}
{{-     $created := "" -}}
{{-     range $class := $ -}}
{{-       if get $class $kind -}}
{{-         $at := get $class "created" | toString -}}
{{- /* Timestamps are RFC 3339 in UTC, so their text sorts as time does. */ -}}
{{-         if or (not $found) (gt $at $created) (and (eq $at $created) (lt $class.name $found)) -}}
{{-           $found = $class.name -}}
{{-           $created = $at -}}
{{-         end -}}
{{-       end -}}
{{-     end -}}
{{-   end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{- /*
golden-image.class.frozen: the class of a consumer. What it states; else the class of its own bound claims, the newest's where they are
mixed; else of its newest machine template, stated there or recorded on it by the daemon; else today's default. So moving the cluster's
default never fails, and never rolls, a healthy pool, scaled to zero or not.

Clones of goldens go before a pool's other disks: a data disk made later in another class says nothing about the system disk.
Arguments: stated, disks (the consumer's own), template, classes, reference (of the pool), out. Sets out.class, may be empty, and out.from.
*/ -}}
{{- define "golden-image.class.frozen" -}}
{{- $bound := list -}}
{{- $clones := list -}}
{{- range $disk := (.disks | default list) -}}
{{-   if and (get $disk "bound") (get $disk "class") -}}
{{-     $bound = append $bound $disk -}}
{{-     if get $disk "golden" -}}{{- $clones = append $clones $disk -}}{{- end -}}
{{-   end -}}
{{- end -}}
{{- $newest := "" -}}
{{- $created := "" -}}
{{- $mixed := false -}}
{{- range $disk := ($clones | default $bound) -}}
{{-   $at := get $disk "created" | toString -}}
{{-   if and $newest (ne $disk.class $newest) -}}{{- $mixed = true -}}{{- end -}}
{{-   if or (not $newest) (gt $at $created) (and (eq $at $created) (lt $disk.class $newest)) -}}
{{-     $newest = $disk.class -}}
{{-     $created = $at -}}
{{-   end -}}
{{- end -}}
{{- $template := .template | default dict -}}
{{- $told := get $template "class" | default (get $template "recordedClass") -}}
{{- $class := .stated | default $newest | default $told | default (include "golden-image.class.default" (.classes | default list)) -}}
{{- $by := ternary "the newest of its disks" (ternary "its own disks" "its newest machine template" (ne $newest "")) $mixed -}}
{{- $from := "is the default" -}}
{{- if .stated -}}
{{-   $from = "it states" -}}
{{- else if $newest | default $told -}}
{{-   $from = printf "pool %s has by %s" .reference $by -}}
{{- end -}}
{{- $_ := set .out "class" $class -}}
{{- $_ := set .out "from" $from -}}
{{- end -}}

{{- /*
golden-image.disks.own: which of a namespace's disks belong to this pool. A disk that carries a pool annotation says so itself, in our
form or in the one of the former chart (the MachineDeployment's name). One without is told by its name, disk-system-<machine>, where the
longest name of a MachineDeployment that fits owns it: a bare prefix would give pool `gpu` the disks of its sibling `gpu-large`.
Arguments: disks, reference, pool {machineDeployment, diskName}, siblings (names of the namespace's MachineDeployments), out. Sets out.disks.
*/ -}}
{{- define "golden-image.disks.own" -}}
{{- $pool := .pool -}}
{{- $own := list -}}
{{- range $disk := (.disks | default list) -}}
{{-   $mark := get $disk "pool" | default "unknown" -}}
{{-   if ne $mark "unknown" -}}
{{-     if has $mark (list $.reference $pool.machineDeployment) -}}{{- $own = append $own $disk -}}{{- end -}}
{{-   else -}}
{{-     $owner := "" -}}
{{-     range $name := append ($.siblings | default list) $pool.machineDeployment -}}
{{-       if and (hasPrefix (printf "%s-%s-" ($pool.diskName | default "disk-system") $name) $disk.name) (gt (len $name) (len $owner)) -}}{{- $owner = $name -}}{{- end -}}
{{-     end -}}
{{-     if and $owner (eq $owner $pool.machineDeployment) -}}{{- $own = append $own $disk -}}{{- end -}}
{{-   end -}}
{{- end -}}
{{- $_ := set .out "disks" $own -}}
{{- end -}}

{{- /*
The only templates that ask the cluster. Everything is read into one plain dict, which the pure templates judge; without a cluster
(helm template) the dict stays empty.

golden-image.lookup: one object or list, or {}. Helm fails a render when it looks for a kind whose API group is not served, so a kind is
asked for only where discovery has it. Arguments root, apiVersion, kind, namespace, name, out; sets out.object.
*/ -}}
{{- define "golden-image.lookup" -}}
{{- $object := dict -}}
{{- if .root.Capabilities.APIVersions.Has (printf "%s/%s" .apiVersion .kind) -}}
{{-   $object = lookup .apiVersion .kind (.namespace | default "") (.name | default "") | default dict -}}
{{- end -}}
{{- $_ := set .out "object" $object -}}
{{- end -}}

{{- define "golden-image.observe.items" -}}
{{- $found := dict -}}
{{- include "golden-image.lookup" (dict "root" .root "apiVersion" .apiVersion "kind" .kind "namespace" .namespace "out" $found) -}}
{{- $_ := set .out "items" (get $found.object "items" | default list) -}}
{{- end -}}

{{- /*
golden-image.observe. Arguments root, catalog (its namespace), pool (as in decide; nothing for a VM disk), out (becomes `observed`).
*/ -}}
{{- define "golden-image.observe" -}}
{{- $out := .out -}}
{{- /* Any cluster answers a list of StorageClasses with a list, be it empty. */ -}}
{{- $answer := lookup "storage.k8s.io/v1" "StorageClass" "" "" -}}
{{- $_ := set $out "cluster" (not (empty $answer)) -}}
{{- if $out.cluster -}}
{{-   $classes := list -}}
{{-   range $item := ($answer.items | default list) -}}
{{-     $notes := dig "metadata" "annotations" (dict) $item | default dict -}}
{{-     $classes = append $classes (dict
          "name" $item.metadata.name
          "created" (dig "metadata" "creationTimestamp" "" $item)
          "virtDefault" (eq (get $notes "storageclass.kubevirt.io/is-default-virt-class") "true")
          "default" (eq (get $notes "storageclass.kubernetes.io/is-default-class") "true")
          "betaDefault" (eq (get $notes "storageclass.beta.kubernetes.io/is-default-class") "true")
          "expandable" (get $item "allowVolumeExpansion" | default false)) -}}
{{-   end -}}
{{-   $_ := set $out "classes" $classes -}}
{{-   include "golden-image.observe.images" . -}}
{{-   include "golden-image.observe.catalog" . -}}
{{-   if .pool -}}
{{-     include "golden-image.observe.pool" . -}}
{{-   end -}}
{{-   $found := dict -}}
{{-   include "golden-image.lookup" (dict "root" .root "apiVersion" "cdi.kubevirt.io/v1beta1" "kind" "CDIConfig" "name" "config" "out" $found) -}}
{{-   $overhead := dig "status" "filesystemOverhead" (dict) $found.object | default dict -}}
{{-   $_ := set $out "overhead" (dict "global" (get $overhead "global") "classes" (get $overhead "storageClass" | default dict)) -}}
{{-   $minimums := dict -}}
{{-   include "golden-image.observe.items" (dict "root" .root "apiVersion" "cdi.kubevirt.io/v1beta1" "kind" "StorageProfile" "out" $found) -}}
{{-   range $item := $found.items -}}
{{-     with get ($item.metadata.annotations | default dict) "cdi.kubevirt.io/minimumSupportedPvcSize" -}}{{- $_ := set $minimums $item.metadata.name . -}}{{- end -}}
{{-   end -}}
{{-   $_ := set $out "minimums" $minimums -}}
{{- end -}}
{{- end -}}

{{- define "golden-image.observe.images" -}}
{{- $found := dict -}}
{{- include "golden-image.observe.items" (dict "root" .root "apiVersion" "cozystack.io/v1alpha1" "kind" "GoldenImage" "out" $found) -}}
{{- $images := list -}}
{{- range $item := $found.items -}}
{{-   $image := dict -}}
{{-   include "golden-image.image.read" (dict "item" $item "out" $image) -}}
{{-   $images = append $images $image -}}
{{- end -}}
{{- $_ := set .out "images" $images -}}
{{- end -}}

{{- define "golden-image.observe.catalog" -}}
{{- $mark := include "golden-image.mark" . -}}
{{- $found := dict -}}
{{- include "golden-image.observe.items" (dict "root" .root "apiVersion" "v1" "kind" "PersistentVolumeClaim" "namespace" .catalog "out" $found) -}}
{{- $claims := list -}}
{{- range $item := $found.items -}}
{{-   $labels := get $item.metadata "labels" | default dict -}}
{{-   $notes := get $item.metadata "annotations" | default dict -}}
{{-   $claims = append $claims (dict
        "name" $item.metadata.name
        "class" (get $item.spec "storageClassName" | default "")
        "request" (dig "resources" "requests" "storage" "" $item.spec)
        "capacity" (dig "status" "capacity" "storage" "" $item)
        "mode" (get $item.spec "volumeMode" | default "Filesystem")
        "pending" (ne (dig "status" "phase" "" $item) "Bound")
        "ours" (eq (get $labels (printf "%sgolden" $mark)) "true")
        "image" (get $labels (printf "%simage" $mark))
        "identity" (get $labels (printf "%sidentity" $mark))
        "retiring" (hasKey $notes (printf "%sretiring" $mark))
        "retired" (hasKey $notes (printf "%sretired" $mark))
        "terminating" (hasKey $item.metadata "deletionTimestamp")
        "temporary" (or (hasKey $labels "cdi.kubevirt.io/OwnedByUID") (hasKey $notes "cdi.kubevirt.io/OwnedByUID") (hasKey $notes "cdi.kubevirt.io/storage.populator.kind") (hasPrefix "prime-" $item.metadata.name) (hasPrefix "tmp-" $item.metadata.name))) -}}
{{- end -}}
{{- $_ := set .out "claims" $claims -}}
{{- include "golden-image.observe.items" (dict "root" .root "apiVersion" "cdi.kubevirt.io/v1beta1" "kind" "DataVolume" "namespace" .catalog "out" $found) -}}
{{- $volumes := list -}}
{{- range $item := $found.items -}}
{{-   $storage := get $item.spec "storage" | default (get $item.spec "pvc") | default dict -}}
{{-   $volumes = append $volumes (dict "name" $item.metadata.name "phase" (dig "status" "phase" "" $item) "class" (get $storage "storageClassName") "size" (dig "resources" "requests" "storage" "" $storage)) -}}
{{- end -}}
{{- $_ := set .out "volumes" $volumes -}}
{{- end -}}

{{- /* The pool's disks, its siblings' MachineDeployments, and the machine template it runs now. */ -}}
{{- define "golden-image.observe.pool" -}}
{{- $root := .root -}}
{{- $namespace := $root.Release.Namespace -}}
{{- $mark := include "golden-image.mark" . -}}
{{- $found := dict -}}
{{- $disks := dict -}}
{{- include "golden-image.observe.items" (dict "root" $root "apiVersion" "cdi.kubevirt.io/v1beta1" "kind" "DataVolume" "namespace" $namespace "out" $found) -}}
{{- range $item := $found.items -}}
{{-   $notes := get $item.metadata "annotations" | default dict -}}
{{-   $_ := set $disks $item.metadata.name (dict "name" $item.metadata.name "pool" (get $notes (printf "%spool" $mark)) "golden" (get $notes (printf "%sgolden" $mark)) "finished" (eq (dig "status" "phase" "" $item) "Succeeded")) -}}
{{- end -}}
{{- include "golden-image.observe.items" (dict "root" $root "apiVersion" "v1" "kind" "PersistentVolumeClaim" "namespace" $namespace "out" $found) -}}
{{- range $item := $found.items -}}
{{-   $notes := get $item.metadata "annotations" | default dict -}}
{{-   $bound := eq (dig "status" "phase" "" $item) "Bound" -}}
{{- /* A claim whose DataVolume is gone speaks for itself: CDI binds a clone's claim at its very end. */ -}}
{{-   $disk := get $disks $item.metadata.name | default (dict "name" $item.metadata.name "pool" (get $notes (printf "%spool" $mark)) "golden" (get $notes (printf "%sgolden" $mark)) "finished" $bound) -}}
{{-   $_ := set $disk "created" (get $item.metadata "creationTimestamp") -}}
{{-   $_ := set $disk "bound" $bound -}}
{{-   $_ := set $disk "class" (get $item.spec "storageClassName" | default "") -}}
{{-   $_ := set $disks $item.metadata.name $disk -}}
{{- end -}}
{{- $_ := set .out "disks" (values $disks) -}}
{{- $machines := "cluster.x-k8s.io/v1beta1" -}}
{{- if $root.Capabilities.APIVersions.Has "cluster.x-k8s.io/v1beta2/MachineDeployment" -}}{{- $machines = "cluster.x-k8s.io/v1beta2" -}}{{- end -}}
{{- include "golden-image.observe.items" (dict "root" $root "apiVersion" $machines "kind" "MachineDeployment" "namespace" $namespace "out" $found) -}}
{{- $siblings := list -}}
{{- $current := "" -}}
{{- range $item := $found.items -}}
{{-   $siblings = append $siblings $item.metadata.name -}}
{{-   if eq $item.metadata.name $.pool.machineDeployment -}}{{- $current = dig "spec" "template" "spec" "infrastructureRef" "name" "" $item -}}{{- end -}}
{{- end -}}
{{- $_ := set .out "siblings" $siblings -}}
{{- if $current -}}
{{-   include "golden-image.lookup" (dict "root" $root "apiVersion" "infrastructure.cluster.x-k8s.io/v1alpha1" "kind" "KubevirtMachineTemplate" "namespace" $namespace "name" $current "out" $found) -}}
{{-   range $disk := (dig "spec" "template" "spec" "virtualMachineTemplate" "spec" "dataVolumeTemplates" (list) $found.object) -}}
{{-     if eq (dig "metadata" "name" "" $disk) ($.pool.diskName | default "disk-system") -}}
{{-       $notes := dig "metadata" "annotations" (dict) $disk | default dict -}}
{{-       $storage := get $disk.spec "storage" | default (get $disk.spec "pvc") | default dict -}}
{{-       $recorded := get (dig "metadata" "annotations" (dict) $found.object | default dict) (printf "%sstorage-class" $mark) -}}
{{-       $_ := set $.out "template" (dict
            "golden" (dig "source" "pvc" "name" "" $disk.spec)
            "pool" (get $notes (printf "%spool" $mark))
            "identity" (get $notes (printf "%sidentity" $mark))
            "class" (get $storage "storageClassName")
            "recordedClass" $recorded) -}}
{{-     end -}}
{{-   end -}}
{{- end -}}
{{- end -}}

{{- /*
Worker pools: what a pool chart includes.

golden-image.worker: resolves, looks, decides, and fails the render with the reason. Arguments: those of golden-image.resolve except
subject, and
  root          the chart's root context ($)
  pool          {kind (default KubernetesNodes), name (<cluster>-<pool>), machineDeployment, diskName (default disk-system)}
  storageClass  the class the pool states, may be empty
  diskSize
  catalog       the catalog's namespace, default cozy-public
  out           gets the results of resolve and decide together
*/ -}}
{{- define "golden-image.worker" -}}
{{- $kind := .pool.kind | default "KubernetesNodes" -}}
{{- $subject := printf "%s %s/%s" $kind .root.Release.Namespace .pool.name -}}
{{- $reference := printf "%s/%s/%s" .root.Release.Namespace $kind .pool.name -}}
{{- $catalog := include "golden-image.namespace" .catalog -}}
{{- $out := .out -}}
{{- $resolved := dict -}}
{{- include "golden-image.resolve" (dict "subject" $subject "osImage" .osImage "class" .class "talosDefaults" .talosDefaults "talos" .talos "kubernetesVersion" .kubernetesVersion "platformImage" .platformImage "out" $resolved) -}}
{{- if not (hasKey $resolved "error") -}}
{{-   $_ := set $resolved "class" (get (.class | default dict) "name") -}}
{{-   $pool := dict "machineDeployment" .pool.machineDeployment "diskName" .pool.diskName -}}
{{-   $observed := dict -}}
{{- /* The HTTP path asks the cluster nothing, and so cannot depend on it. */ -}}
{{-   if eq $resolved.kind "golden" -}}
{{-     include "golden-image.observe" (dict "root" .root "catalog" $catalog "pool" $pool "out" $observed) -}}
{{-   end -}}
{{-   include "golden-image.decide" (dict "subject" $subject "reference" $reference "namespace" $catalog "resolved" $resolved "observed" $observed "pool" $pool "storageClass" .storageClass "diskSize" .diskSize "out" $out) -}}
{{- end -}}
{{- /* What was decided stands over what was resolved: a golden's name may have a class appended. */ -}}
{{- range $key, $value := $resolved -}}
{{-   if not (hasKey $out $key) -}}{{- $_ := set $out $key $value -}}{{- end -}}
{{- end -}}
{{- $_ := set $out "catalog" $catalog -}}
{{- $_ := set $out "caConfigMap" (include "golden-image.worker.caName" .root) -}}
{{- if hasKey $out "error" -}}{{- fail $out.error -}}{{- end -}}
{{- end -}}

{{- /*
The three blocks of the disk template, each without indentation and final newline. On the HTTP path they are the bytes of today's chart,
because a machine template is named by a hash of its text and one changed blank would replace every worker.
*/ -}}
{{- define "golden-image.worker.annotations" -}}
{{- if .clone -}}
{{-   $mark := include "golden-image.mark" . -}}
{{ $mark }}golden: {{ .golden | quote }}
{{-   with .pool }}
{{ $mark }}pool: {{ . | quote }}
{{-   end }}
{{- /* A Kairos golden's name does not tell what it is; with this, a later render still knows what the pool has cloned. */}}
{{-   if eq .family "kairos" }}
{{ $mark }}identity: {{ .identity | quote }}
{{-   end }}
{{- else -}}
{{- /* Today's workers carry this; on a clone it would force a copy over the network (R16). */ -}}
cdi.kubevirt.io/storage.usePopulator: "false"
{{- end -}}
{{- end -}}

{{- define "golden-image.worker.source" -}}
{{- if .clone -}}
pvc:
  namespace: {{ .catalog }}
  name: {{ .golden | quote }}
{{- else if eq .kind "registry" -}}
registry:
  url: {{ .url | quote }}
{{- else -}}
http:
  url: {{ .url }}
{{-   if .factoryCA }}
  certConfigMap: {{ .caConfigMap }}
{{-   end }}
{{- end -}}
{{- end -}}

{{- /* The ConfigMap that the HTTP path's certConfigMap names; nothing where it is not needed. Arguments root and image (worker's out). */ -}}
{{- define "golden-image.worker.caConfigMap" -}}
{{- if and (eq .image.kind "http") .image.factoryCA -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "golden-image.worker.caName" .root }}
  namespace: {{ .root.Release.Namespace }}
data:
  ca.pem: |
    {{- .image.factoryCA | nindent 4 }}
{{- end -}}
{{- end -}}

{{- /* No content hash in the name: CDI reads the ConfigMap by name at import, so a new CA needs no new machine template. */ -}}
{{- define "golden-image.worker.caName" -}}{{ printf "%s-talos-factory-ca" .Release.Name | trunc 63 | trimSuffix "-" }}{{- end -}}

{{- /*
golden-image.workerClass: reads a WorkerClass for the class argument. A pool without class name asks for none, and a built-in name
resolves without its object, so that classless and built-in pools never depend on the package that serves classes.
Arguments root, name, subject, out; sets out.class or fails.
*/ -}}
{{- define "golden-image.workerClass" -}}
{{- if .name -}}
{{-   $found := dict -}}
{{-   include "golden-image.lookup" (dict "root" .root "apiVersion" "cozystack.io/v1alpha1" "kind" "WorkerClass" "name" .name "out" $found) -}}
{{-   if $found.object -}}
{{-     $_ := set .out "class" (include "golden-image.workerClass.read" (dict "name" .name "spec" (get $found.object "spec")) | fromYaml) -}}
{{-   else if has .name (list "talos" "kairos") -}}
{{-     $_ := set .out "class" (dict "name" .name "bootstrap" .name) -}}
{{-   else -}}
{{-     include "golden-image.refuse" (dict "out" .out "message" "classNotFound" "with" (dict "subject" .subject "class" .name)) -}}
{{-     fail .out.error -}}
{{-   end -}}
{{- end -}}
{{- end -}}

{{- define "golden-image.workerClass.read" -}}
{{- $spec := .spec | default dict -}}
{{- $source := dig "kubevirt" "osImage" (get $spec "osImage") $spec -}}
{{- $class := dict "name" .name "bootstrap" (get $spec "bootstrap") "talos" (get $spec "talos" | default dict) "image" (get $spec "image" | default dict) -}}
{{- if kindIs "map" $source -}}{{- $_ := set $class "osImage" $source -}}{{- end -}}
{{- toYaml $class -}}
{{- end -}}

{{- define "kubernetes-nodes.clusterName" -}}kubernetes-{{ required "cluster is required" .Values.cluster }}{{- end -}}

{{- define "kubernetes-nodes.groupName" -}}
{{- $prefix := printf "kubernetes-nodes-%s-" .Values.cluster -}}
{{- if not (hasPrefix $prefix .Release.Name) -}}{{- fail (printf "release %q must start with %q" .Release.Name $prefix) -}}{{- end -}}
{{- trimPrefix $prefix .Release.Name -}}
{{- end -}}

{{- define "kubernetes-nodes.patch" -}}
{{- index (dict "v1.35" "v1.35.6" "v1.34" "v1.34.9" "v1.33" "v1.33.13") .Values.version | required (printf "no patch known for Kubernetes %s" .Values.version) -}}
{{- end -}}

{{- /*
The platform's Talos settings. They are here and not in values.yaml, because a default in values looks exactly like a tenant's choice, and
a class's baseline stands between the two.
*/ -}}
{{- define "kubernetes-nodes.talosDefaults" -}}
version: v1.13.6
schematicID: ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515
imageFactoryURL: https://factory.talos.dev
installerRepository: factory.talos.dev/installer
registryMirrors: {}
{{- end -}}

{{- define "kubernetes-nodes.subject" -}}
KubernetesNodes {{ .Release.Namespace }}/{{ .Values.cluster }}-{{ include "kubernetes-nodes.groupName" . }}
{{- end -}}

{{- /* What the pool boots, without asking the cluster for anything but its class, where it names one. */ -}}
{{- define "kubernetes-nodes.resolve" -}}
{{- $class := dict -}}
{{- $subject := include "kubernetes-nodes.subject" .root -}}
{{- include "golden-image.workerClass" (dict "root" .root "name" .root.Values.workerClassName "subject" $subject "out" $class) -}}
{{- include "golden-image.resolve" (dict
      "subject" $subject
      "osImage" .root.Values.osImage
      "class" $class.class
      "talosDefaults" (include "kubernetes-nodes.talosDefaults" . | fromYaml)
      "talos" .root.Values.talos
      "kubernetesVersion" .root.Values.version
      "out" .out) -}}
{{- if hasKey .out "error" -}}{{- fail .out.error -}}{{- end -}}
{{- end -}}

{{- /* The same, and the golden, its guards and the disk's class. */ -}}
{{- define "kubernetes-nodes.image" -}}
{{- $class := dict -}}
{{- $group := include "kubernetes-nodes.groupName" .root -}}
{{- include "golden-image.workerClass" (dict "root" .root "name" .root.Values.workerClassName "subject" (include "kubernetes-nodes.subject" .root) "out" $class) -}}
{{- include "golden-image.worker" (dict
      "root" .root
      "osImage" .root.Values.osImage
      "class" $class.class
      "talosDefaults" (include "kubernetes-nodes.talosDefaults" . | fromYaml)
      "talos" .root.Values.talos
      "kubernetesVersion" .root.Values.version
      "storageClass" .root.Values.storageClass
      "diskSize" (.root.Values.diskSize | default "20Gi")
      "pool" (dict "name" (printf "%s-%s" .root.Values.cluster $group) "machineDeployment" (printf "%s-%s" (include "kubernetes-nodes.clusterName" .root) $group))
      "out" .out) -}}
{{- end -}}

{{- define "kubernetes-nodes.clusterName" -}}kubernetes-{{ required "cluster is required" .Values.cluster }}{{- end -}}

{{- define "kubernetes-nodes.groupName" -}}
{{- $prefix := printf "kubernetes-nodes-%s-" .Values.cluster -}}
{{- if not (hasPrefix $prefix .Release.Name) -}}{{- fail (printf "release %q must start with %q" .Release.Name $prefix) -}}{{- end -}}
{{- trimPrefix $prefix .Release.Name -}}
{{- end -}}

{{- define "kubernetes-nodes.patch" -}}
{{- index (dict "v1.35" "v1.35.6" "v1.34" "v1.34.9" "v1.33" "v1.33.13") .Values.version | required (printf "no patch known for Kubernetes %s" .Values.version) -}}
{{- end -}}

{{- /*
Written for this repository; what it gives is what the platform's helper of the same name gives: a Package only where the hoster enabled
it and did not disable it, with the components where there are any, kept by Helm when it leaves the release.
*/ -}}
{{- define "cozystack.platform.package.optional.default" -}}
{{- $name := index . 0 -}}
{{- $values := (index . 1).Values -}}
{{- $components := dict -}}
{{- if gt (len .) 2 -}}{{- $components = index . 2 -}}{{- end -}}
{{- $enabled := default list $values.bundles.enabledPackages -}}
{{- $disabled := default list $values.bundles.disabledPackages -}}
{{- if and (has $name $enabled) (not (has $name $disabled)) -}}
---
apiVersion: cozystack.io/v1alpha1
kind: Package
metadata:
  name: {{ $name }}
  annotations:
    helm.sh/resource-policy: keep
spec:
  variant: default
{{- if $components }}
  components:
{{ toYaml $components | indent 4 }}
{{- end }}
{{- end }}
{{ end }}

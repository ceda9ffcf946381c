{{/* The labels of every object of this chart. */}}
{{- define "golden-catalog.labels" -}}
app.kubernetes.io/name: golden-catalog
app.kubernetes.io/instance: {{ .Release.Name | trunc 63 | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}

{{/*
The name of what lies outside the release's namespace. Two releases may meet there for a while, when one replaces the other; and what is
left of one whose namespace was deleted must not stand in the way of the next.
*/}}
{{- define "golden-catalog.outsideName" -}}
golden-catalog-controller-{{ .Release.Namespace }}-{{ .Release.Name }}
{{- end }}

{{/* The labels that select the Pods of the controller; they never change, since a Deployment's selector cannot. */}}
{{- define "golden-catalog.controllerSelector" -}}
app.kubernetes.io/name: golden-catalog
app.kubernetes.io/component: controller
{{- end }}

{{/* The container image: `imageDigest` counts for more than what `image` has behind its `@`. */}}
{{- define "golden-catalog.image" -}}
{{- if get .Values "imageDigest" }}{{ regexReplaceAll "@.*$" .Values.image "" }}@{{ .Values.imageDigest }}{{ else }}{{ .Values.image }}{{ end }}
{{- end }}

{{/*
The controller's resources. A spool on the node's own disk is told to the scheduler and to the kubelet, unless the values do it themselves:
the request keeps the Pod from nodes without that much and from being evicted first, and the limit, beyond what the volume may hold, keeps
it from the smaller one that a LimitRange of the namespace may give to whoever states none.
*/}}
{{- define "golden-catalog.controllerResources" -}}
{{- $resources := .Values.controller.resources | default dict }}
{{- $stated := or (hasKey (get $resources "requests" | default dict) "ephemeral-storage") (hasKey (get $resources "limits" | default dict) "ephemeral-storage") }}
{{- if not (or .Values.spool.storageClass $stated) }}
  {{- $volume := dict }}
  {{- include "golden-image.size" (dict "given" .Values.spool.volumeSize "out" $volume) }}
  {{- /* Logs are counted too. */}}
  {{- $limits := dict "ephemeral-storage" (printf "%dMi" (div (add $volume.bytes 1073741824) 1048576)) }}
  {{- $resources = merge (dict "limits" (merge $limits (get $resources "limits" | default dict))) $resources }}
  {{- /* Without a request Kubernetes takes the limit for one. */}}
  {{- $request := get .Values.spool "request" | default "0" }}
  {{- $least := dict }}
  {{- include "golden-image.size" (dict "given" $request "out" $least) }}
  {{- if gt (int64 $least.bytes) (int64 $volume.bytes) }}{{ $request = .Values.spool.volumeSize }}{{ end }}
  {{- $resources = merge (dict "requests" (merge (dict "ephemeral-storage" $request) (get $resources "requests" | default dict))) $resources }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{/* The flags of the controller: the one place where they are. */}}
{{- define "golden-catalog.controllerArgs" -}}
- run
- --role=controller
- --namespace=$(POD_NAMESPACE)
- --catalog-namespace={{ .Values.catalogNamespace }}
- --config=/etc/golden-catalog/settings.yaml
- --spool-dir=/spool
{{- with .Values.spool.advertisedURL }}
- --spool-url={{ . }}
{{- end }}
{{- with include "golden-catalog.webhookHost" . }}
- --webhook-host={{ . }}
{{- end }}
{{- if .Values.controller.statusPage }}
{{- /* On loopback: reached by `kubectl port-forward`, and so by those only who may do that. */}}
- --status-listen=127.0.0.1:8082
{{- end }}
{{- if .Values.admission.enabled }}
- --access-enforced
{{- end }}
{{- range .Values.controller.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* The settings file of the daemon: values that are set; the daemon has the same defaults. */}}
{{- define "golden-catalog.settings" -}}
{{- $out := dict "spoolSize" .Values.spool.size }}
{{- include "golden-catalog.given" (dict "from" .Values.settings "out" $out) }}
{{- include "golden-catalog.text" $out }}
{{- end }}

{{/*
A value as text in a ConfigMap: YAML, which people read; JSON where a text in it holds one of Unicode's own line breaks, which end a line of
YAML too, or a control character, of which `toYaml` makes nothing at all.
*/}}
{{- define "golden-catalog.text" -}}
{{- $text := toYaml . }}
{{- if or (not $text) (regexMatch "[\\x{7f}-\\x{9f}\\x{2028}\\x{2029}]" $text) }}
{{- $text = toJson . }}
{{- range regexFindAll "[\\x{7f}-\\x{9f}]" $text -1 | uniq }}{{ $text = replace . (printf "%+q" . | trimAll "\"") $text }}{{ end }}
{{- end }}
{{- $text }}
{{- end }}

{{/* Copies what is not empty text, an empty map or null from `from` to `out`. */}}
{{- define "golden-catalog.given" -}}
{{- $out := .out }}
{{- range $key, $value := .from }}
  {{- if kindIs "map" $value }}
    {{- $inner := dict }}
    {{- include "golden-catalog.given" (dict "from" $value "out" $inner) }}
    {{- if $inner }}{{ $_ := set $out $key $inner }}{{ end }}
  {{- else if not (or (kindIs "invalid" $value) (and (kindIs "string" $value) (not $value))) }}
    {{- $_ := set $out $key $value }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Ingress to what every role serves: metrics to whom the values say; health to the kubelet, which no selector can name. */}}
{{- define "golden-catalog.metricsIngress" -}}
- ports:
    - {port: metrics, protocol: TCP}
  {{- with .Values.networkPolicies.metricsFrom }}
  from:
    {{- toYaml . | nindent 4 }}
  {{- end }}
- ports:
    - {port: health, protocol: TCP}
{{- end }}

{{/*
Egress that every role needs: names, and the API server. Where the two are no chart can know (a resolver on each node, an API server behind
an address of its own), so that without the values' word these ports are open to every address.
*/}}
{{- define "golden-catalog.clusterEgress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
  {{- with .Values.networkPolicies.dns }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
- ports:
    {{- range .Values.networkPolicies.apiServerPorts }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with .Values.networkPolicies.apiServer }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* What cannot be right is refused before anything is made. */}}
{{- define "golden-catalog.check" -}}
{{- if eq .Values.catalogNamespace .Release.Namespace }}
{{- fail (printf "catalogNamespace is %q, the namespace of this release: the daemon may read Secrets in its own namespace and must not in the catalog's. Install the chart into another namespace, such as cozy-kubernetes-worker-image." .Values.catalogNamespace) }}
{{- end }}
{{- /* A render without a cluster finds no namespace at all, and then nothing can be said. */}}
{{- if and (lookup "v1" "Namespace" "" "kube-system") (not (lookup "v1" "Namespace" "" .Values.catalogNamespace)) }}
{{- fail (printf "the namespace %q (catalogNamespace) does not exist: create it, or name the one that holds the golden images" .Values.catalogNamespace) }}
{{- end }}
{{- include "golden-catalog.checkOtherCatalog" . }}
{{- if .Values.admission.enabled }}
{{- include "golden-catalog.checkOtherGuard" . }}
{{- end }}
{{- end }}

{{/*
GoldenImages are of the whole cluster, and whoever leads writes the status of all of them: two that lead in two namespaces would each take the
other's goldens for gone, and one that moves leaves its goldens behind, in use and guarded by nobody. Whose catalog is where is read from
ClusterRoles, which no tenant can make, as tenants can Leases; it counts while its Lease is renewed.
*/}}
{{- define "golden-catalog.checkOtherCatalog" -}}
{{- range (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "").items | default list }}
{{- $labels := .metadata.labels | default dict }}
{{- $catalog := get $labels "kubernetes-worker-image.cozystack.io/catalog" }}
{{- if and (eq (get $labels "app.kubernetes.io/name") "golden-catalog") $catalog (ne $catalog $.Values.catalogNamespace) }}
{{- $lease := (lookup "coordination.k8s.io/v1" "Lease" $catalog "golden-catalog").spec | default dict }}
{{- $renewed := toDate "2006-01-02T15:04:05Z07:00" (get $lease "renewTime" | toString) | unixEpoch | int64 }}
{{- /* Twice as long as any Lease may hold. */}}
{{- if and (get $lease "holderIdentity") (lt (sub (now | unixEpoch | int64) $renewed) 120) }}
{{- fail (printf "catalogNamespace is %q, and the catalog in %q is led by %s: GoldenImages are one for the whole cluster, and goldens do not move from one namespace to another. Keep `catalogNamespace: %s`, or uninstall the release that leads there first: its goldens stay, and nothing guards them any more. Nothing was changed." $.Values.catalogNamespace $catalog (get $lease "holderIdentity") $catalog) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
One release guards the clones of a catalog namespace. Of two, one leads, and only who leads has certificates for its webhooks: those of the
other would refuse every clone. What a release left whose namespace is gone does not count: it is being collected.
*/}}
{{- define "golden-catalog.checkOtherGuard" -}}
{{- range (lookup "admissionregistration.k8s.io/v1" "ValidatingWebhookConfiguration" "" "").items | default list }}
{{- $annotations := .metadata.annotations | default dict }}
{{- $name := get $annotations "meta.helm.sh/release-name" }}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" }}
{{- $ours := and (eq $name $.Release.Name) (eq $namespace $.Release.Namespace) }}
{{- $catalog := get (.metadata.labels | default dict) "kubernetes-worker-image.cozystack.io/catalog" }}
{{- if and (eq $catalog $.Values.catalogNamespace) $name (not $ours) (not .metadata.deletionTimestamp) (lookup "v1" "Namespace" "" $namespace) }}
{{- fail (printf "admission.enabled: the release %s in the namespace %s guards the clones of the goldens in %s already, and two cannot. Set `admission.enabled: false` for this release, or uninstall that one first: its images and goldens stay. Where that release is gone, delete what it left: `kubectl delete mutatingwebhookconfigurations,validatingwebhookconfigurations %s`. Nothing was changed." $name $namespace $catalog .metadata.name) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The name of both webhook configurations. The leader fills them in by this name. */}}
{{- define "golden-catalog.webhooksName" -}}
golden-catalog-admission-{{ .Release.Namespace }}
{{- end }}

{{/* The labels that select the Pods of the admission role. */}}
{{- define "golden-catalog.admissionSelector" -}}
app.kubernetes.io/name: golden-catalog
app.kubernetes.io/component: admission
{{- end }}

{{/* The host under which the API server reaches the webhook, for its certificate; empty: the Service. */}}
{{- define "golden-catalog.webhookHost" -}}
{{- /* What is no URL is told by the check, which may come later than this. */}}
{{- with .Values.admission.advertisedURL }}{{ regexReplaceAll ":[0-9]*$" (regexReplaceAll "^[a-z]+://" (regexFind "^[a-z]+://[^/?#[:cntrl:]]*" .) "") "" | trimPrefix "[" | trimSuffix "]" }}{{ end }}
{{- end }}

{{/* What every webhook has alike. */}}
{{- define "golden-catalog.webhook" -}}
admissionReviewVersions: [v1]
sideEffects: None
failurePolicy: {{ .failurePolicy }}
# Below the longest that Kubernetes recommends; the daemon answers sooner, in its own words.
timeoutSeconds: 5
matchPolicy: Equivalent
clientConfig:
  {{- with .root.Values.admission.advertisedURL }}
  url: {{ printf "%s/%s" (trimSuffix "/" .) $.path | quote }}
  {{- else }}
  service:
    name: golden-catalog-admission
    namespace: {{ .root.Release.Namespace | quote }}
    path: /{{ .path }}
    port: 443
  {{- end }}
{{- end }}

{{/* CEL: whether a DataVolume's spec names the catalog namespace as the source of a clone, or a DataSource anywhere: only the webhook can follow that. */}}
{{- define "golden-catalog.cel.names" -}}
{{ .spec }}.?source.?pvc.?namespace.orValue('') == {{ .catalog }} || {{ .spec }}.?source.?snapshot.?namespace.orValue('') == {{ .catalog }} || {{ .spec }}.?sourceRef.hasValue() || {{ .spec }}.?pvc.?dataSourceRef.?namespace.orValue('') == {{ .catalog }} || {{ .spec }}.?storage.?dataSourceRef.?namespace.orValue('') == {{ .catalog }}
{{- end }}

{{/* CEL: whether a claim asks for a clone of something in the catalog, by its source or by CDI's former request, which CDI heeds until it says that it is done. */}}
{{- define "golden-catalog.cel.claim" -}}
object.?spec.?dataSourceRef.?namespace.orValue('') == {{ . }} || object.metadata.?annotations[?'k8s.io/CloneRequest'].orValue('').startsWith({{ . }} + '/') && !object.metadata.?annotations[?'k8s.io/CloneOf'].hasValue()
{{- end }}

{{/* The kind of the alert rules: the one asked for, or with `auto` the one that the cluster has; empty for none. */}}
{{- define "golden-catalog.alertsKind" -}}
{{- $want := .Values.monitoring.alerts }}
{{- if ne $want "auto" }}
{{- ternary "" $want (eq $want "none") }}
{{- else if .Capabilities.APIVersions.Has "operator.victoriametrics.com/v1beta1/VMRule" }}VMRule
{{- else if .Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PrometheusRule" }}PrometheusRule
{{- end }}
{{- end }}

{{/* The kind that has the daemon scraped, likewise. */}}
{{- define "golden-catalog.scrapeKind" -}}
{{- $want := .Values.monitoring.scrape }}
{{- if ne $want "auto" }}
{{- ternary "" $want (eq $want "none") }}
{{- else if .Capabilities.APIVersions.Has "operator.victoriametrics.com/v1beta1/VMPodScrape" }}VMPodScrape
{{- else if .Capabilities.APIVersions.Has "monitoring.coreos.com/v1/PodMonitor" }}PodMonitor
{{- end }}
{{- end }}

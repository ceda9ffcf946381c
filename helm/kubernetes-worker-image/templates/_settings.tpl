{{- /*
What the daemon would not start with (src/daemon/settings.rs, src/source): both Deployments read one file, so that a slip in it leaves
webhooks that refuse and no Pod to answer them. What one field's form can say is in values.schema.json; the rest is here, and so is whatever
may hold a password, which a schema would repeat.
*/ -}}

{{- /* A duration such as `1h30m` in milliseconds. */ -}}
{{- define "golden-catalog.millis" -}}
{{- $text := toString . -}}
{{- $sum := 0 -}}
{{- range $unit, $millis := dict "h" 3600000 "m" 60000 "s" 1000 "ms" 1 -}}
{{-   $number := regexFind "^[0-9]+" (regexFind (printf "[0-9]+%s([0-9]|$)" $unit) $text) -}}
{{-   $sum = add $sum (mul (regexReplaceAll "^0+" $number "" | default "0" | int64) $millis) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{- /* Fails with everything that is wrong. Argument: the root. */ -}}
{{- define "golden-catalog.settings.check" -}}
{{- $wrong := list -}}
{{- $settings := .Values.settings -}}
{{- $millis := dict -}}
{{- /* A default that was taken away by `null` is the daemon's own. */ -}}
{{- range $key, $own := dict "backoffMin" "10s" "backoffMax" "10m" "retireWait" "75s" "admissionLinger" "5s" -}}{{- $_ := set $millis $key (include "golden-catalog.millis" (get $settings $key | default $own) | int64) -}}{{- end -}}
{{- range $key, $own := dict "duration" "15s" "renewDeadline" "10s" "retryPeriod" "2s" -}}{{- $_ := set $millis $key (include "golden-catalog.millis" (get ($settings.lease | default dict) $key | default $own) | int64) -}}{{- end -}}
{{- if gt $millis.backoffMin $millis.backoffMax -}}
{{-   $wrong = append $wrong "settings.backoffMin must not be more than settings.backoffMax" -}}
{{- end -}}
{{- if gt $millis.admissionLinger 15000 -}}
{{-   $wrong = append $wrong "settings.admissionLinger must be at most 15s, so that Kubernetes does not end the Pod first" -}}
{{- end -}}
{{- if le $millis.retireWait 60000 -}}
{{-   $wrong = append $wrong "settings.retireWait must be longer than the API server's --request-timeout, which is 60s where nobody changed it: a clone that is let in while a golden closes must be there at the second look" -}}
{{- end -}}
{{- $short := or (ge $millis.renewDeadline $millis.duration) (ge (mul 12 $millis.retryPeriod) (mul 10 $millis.renewDeadline)) -}}
{{- if or $short (gt $millis.duration 60000) (mod $millis.duration 1000) -}}
{{-   $wrong = append $wrong "settings.lease must have 1.2 × retryPeriod < renewDeadline < duration, and a duration of whole seconds, at most 60s" -}}
{{- end -}}
{{- $egress := $settings.egress | default dict -}}
{{- range $key, $value := (get $egress "deadlines" | default dict) -}}
{{-   if gt (include "golden-catalog.millis" $value | int64) 604800000 -}}
{{-     $wrong = append $wrong (printf "settings.egress.deadlines.%s must be at most a week (168h)" $key) -}}
{{-   end -}}
{{- end -}}
{{- with get $egress "caBundle" -}}
{{- /* A certificate is an ASN.1 sequence of more than 127 bytes, which begins with `MI` in base64; around it there may be any text. */ -}}
{{-   $whole := regexFindAll "(?m)^-----BEGIN CERTIFICATE-----\\s*\\nMI[\\sA-Za-z0-9+/=]+\\n-----END CERTIFICATE-----" . -1 -}}
{{-   if or (not $whole) (ne (len $whole) (len (regexFindAll "(?m)^-----BEGIN CERTIFICATE-----" . -1))) -}}
{{-     $wrong = append $wrong "settings.egress.caBundle must be certificates in PEM, each between `-----BEGIN CERTIFICATE-----` and `-----END CERTIFICATE-----`" -}}
{{-   end -}}
{{- end -}}
{{- range $host, $bases := (get $egress "mirrors" | default dict) -}}
{{-   $remedy := include "golden-catalog.authority.error" $host -}}
{{-   if regexMatch "[/?#@\\\\\\s]" $host -}}
{{-     $wrong = append $wrong (printf "settings.egress.mirrors: %s must be `host` or `host:port`" (include "golden-catalog.url.shown" $host)) -}}
{{-   else if $remedy -}}
{{-     $wrong = append $wrong (printf "settings.egress.mirrors: %s must be `host` or `host:port`: it %s" (include "golden-catalog.url.shown" $host) $remedy) -}}
{{-   end -}}
{{-   range $base := ($bases | default list) -}}
{{-     with include "golden-catalog.url.error" $base | replace "name a Secret in `credentialsSecretRef`" "a mirror gets none" -}}{{- $wrong = append $wrong (printf "settings.egress.mirrors: %s" .) -}}{{- end -}}
{{-     if contains "?" $base -}}{{- $wrong = append $wrong "settings.egress.mirrors: a base URL must not have a query" -}}{{- end -}}
{{-   end -}}
{{- end -}}
{{- $proxy := get $egress "proxy" | default dict -}}
{{- range $key := list "http" "https" -}}
{{-   with get $proxy $key -}}
{{-     $address := ternary . (printf "http://%s" .) (contains "://" .) -}}
{{-     if contains "@" $address -}}
{{-       $wrong = append $wrong (printf "settings.egress.proxy.%s must not hold a password, because settings are kept in a ConfigMap: put HTTP_PROXY, HTTPS_PROXY and NO_PROXY into a Secret and name it in controller.proxySecret" $key) -}}
{{-     else if or (include "golden-catalog.url.error" $address) (not (regexMatch "^https?://[^/?#]+/?$" $address)) -}}
{{-       $wrong = append $wrong (printf "settings.egress.proxy.%s must be `http://host[:port]` or `https://…`; SOCKS is not supported" $key) -}}
{{-     end -}}
{{-   end -}}
{{- end -}}
{{- /* As src/source/proxy.rs reads them. */ -}}
{{- range $item := (regexReplaceAll "[\\s,]+" (get $proxy "noProxy" | default "") " " | trim | splitList " " | compact) -}}
{{-   $rest := regexReplaceAll ":[0-9]+$" $item "" -}}
{{-   $port := trimPrefix $rest $item | trimPrefix ":" -}}
{{-   $known := or (include "golden-catalog.block" (regexReplaceAll "^\\[(.*)\\]$" $rest "${1}")) (regexMatch "^(\\*?\\.)?[-_.0-9A-Za-z]*[-_0-9A-Za-z]\\.*$" $rest) -}}
{{-   if not (or (eq $item "*") (include "golden-catalog.block" $item) (and $known (le (include "golden-catalog.port" $port | int) 65535))) -}}
{{-     $wrong = append $wrong (printf "settings.egress.proxy.noProxy: %s must be a host, `.suffix`, address or CIDR block, each with an optional `:port`, or `*`" (include "golden-catalog.url.shown" $item)) -}}
{{-   end -}}
{{- end -}}
{{- $proxied := or (get $proxy "http") (get $proxy "https") (regexReplaceAll "[\\s,]+" (get $proxy "noProxy" | default "") "") -}}
{{- if and (get .Values.controller "proxySecret") $proxied -}}
{{-   $wrong = append $wrong "controller.proxySecret counts only where settings.egress.proxy is empty: put the proxies and NO_PROXY all into the Secret, or all into settings.egress.proxy" -}}
{{- end -}}
{{- range $key := list "factoryURL" "imageFactoryURL" -}}
{{-   with get $.Values $key -}}{{- with include "golden-catalog.url.error" . | replace "in `credentialsSecretRef`" "in the `credentialsSecretRef` of each entry that needs them" -}}{{- $wrong = append $wrong (printf "%s: %s" $key .) -}}{{- end -}}{{- end -}}
{{- end -}}
{{- range $key, $value := dict "admission.advertisedURL" (get .Values.admission "advertisedURL") "spool.advertisedURL" (get .Values.spool "advertisedURL") -}}
{{-   with $value -}}
{{-     if or (not (hasPrefix "https://" .)) (contains "@" .) (contains "?" .) (include "golden-catalog.url.error" .) -}}
{{-       $wrong = append $wrong (printf "%s must be an `https://` URL without credentials and query, such as `https://192.0.2.1:8443`" $key) -}}
{{-     end -}}
{{-   end -}}
{{- end -}}
{{- with .Values.monitoring -}}
{{-   if not (regexMatch "^https?://[^@\\s]+[^/@\\s]$" .runbookURL) -}}
{{-     $wrong = append $wrong "monitoring.runbookURL must be an `https://` or `http://` URL without credentials and without a slash at its end" -}}
{{-   end -}}
{{- end -}}
{{- with .Values.storage -}}
{{-   $size := dict -}}
{{-   include "golden-image.size" (dict "given" . "out" $size) -}}
{{-   with $size.error -}}{{- $wrong = append $wrong (printf "storage: %s" .) -}}
{{-   else -}}{{- with include "golden-catalog.size.small" $size.bytes -}}{{- $wrong = append $wrong (printf "storage: %s" .) -}}{{- end -}}
{{-   end -}}
{{- end -}}
{{- $spool := dict -}}
{{- $volume := dict -}}
{{- include "golden-image.size" (dict "given" .Values.spool.size "out" $spool) -}}
{{- include "golden-image.size" (dict "given" .Values.spool.volumeSize "out" $volume) -}}
{{- if gt (int64 $spool.bytes) (int64 $volume.bytes) -}}
{{-   $wrong = append $wrong "spool.size must not be more than spool.volumeSize, the volume that it is on" -}}
{{- end -}}
{{- if $wrong -}}
{{- fail (printf "\n%s\nNothing was changed." (join "\n" $wrong)) -}}
{{- end -}}
{{- end -}}

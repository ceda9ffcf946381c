{{- /*
Addresses, as src/model/source.rs reads them. No message repeats what may hold a password: before an `@`, or in a query.
*/ -}}

{{- /* An address as a message may repeat it. */ -}}
{{- define "golden-catalog.url.shown" -}}
{{- $shown := regexReplaceAll "^([A-Za-z]+://)[^/?#]*@" . "${1}…@" -}}
{{- $shown = regexReplaceAll "(?s)[?#].*$" $shown "?…" -}}
{{- $rest := regexReplaceAll "^[A-Za-z]+://…@" $shown "" -}}
{{- /* A password may have a `#`, `?` or `/` that nobody escaped: then what is before it may be a part of one. */ -}}
{{- $split := regexMatch "(?s)^([A-Za-z]+://)?[^/]*[?#].*@" . -}}
{{- $noPort := and (contains "@" .) (not (contains "…@" $shown)) (regexMatch "^([A-Za-z]+://)?[^/?#@\\[]*:[0-9]*[^0-9/?#@]" .) -}}
{{- include "golden-image.shown" (ternary "…" $shown (or $split $noPort (contains "@" $rest))) -}}
{{- end -}}

{{- /* What is wrong with an address, or nothing. Argument: text. */ -}}
{{- define "golden-catalog.url.error" -}}
{{- $wrong := "" -}}
{{- $authority := regexReplaceAll "^https?://" (regexFind "^https?://[^/?#]*" .) "" -}}
{{- if gt (len (splitList "" .)) 2048 -}}
{{-   $wrong = "must be at most 2048 characters" -}}
{{- else if contains " " . -}}
{{-   $wrong = "must not contain spaces: write `%20` for one that belongs to the address" -}}
{{- else if regexMatch "[\\x00-\\x1f\\x7f]" . -}}
{{-   $wrong = "must not contain line breaks or other control characters" -}}
{{- else if not (regexMatch "^https?://" .) -}}
{{-   $scheme := regexFind "^[Hh][Tt][Tt][Pp][Ss]?://" . | lower -}}
{{-   $wrong = ternary (printf "must have its scheme in lower case: write `%s`" $scheme) "must be an absolute URL that begins with `https://` or `http://`" (ne $scheme "") -}}
{{- else if contains "@" $authority -}}
{{-   $wrong = "must not contain credentials: name a Secret in `credentialsSecretRef`" -}}
{{- else if contains "\\" $authority -}}
{{-   $wrong = "must not contain a backslash in its host: write `/`" -}}
{{- else if regexMatch "^(:|$)" $authority -}}
{{-   $wrong = "must have a host: write it as in `https://images.example.org/disk.qcow2`" -}}
{{- else if contains "#" . -}}
{{-   $wrong = "must not contain a fragment (`#…`)" -}}
{{- else -}}
{{-   $wrong = include "golden-catalog.authority.error" $authority -}}
{{- end -}}
{{- with $wrong -}}{{ include "golden-catalog.url.shown" $ }} is not a valid URL: {{ . }}{{- end -}}
{{- end -}}

{{- /* A port's number; of one with too many digits, a number that is too large. Argument: digits, or nothing. */ -}}
{{- define "golden-catalog.port" -}}{{ regexReplaceAll "^0+" . "" | default "0" | trunc 6 }}{{- end -}}

{{- /* The regular expression of an IPv4 address. */ -}}
{{- define "golden-catalog.v4" -}}
{{- $byte := "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])" -}}
{{- printf "(%s\\.){3}%s" $byte $byte -}}
{{- end -}}

{{- /* Whether a text is an address or a CIDR block, in any right spelling: `yes`, or nothing. */ -}}
{{- define "golden-catalog.block" -}}
{{- $v4 := include "golden-catalog.v4" "" -}}
{{- $group := "[0-9A-Fa-f]{1,4}" -}}
{{- $groups := printf "(%s:)*%s" $group $group -}}
{{- $address := regexReplaceAll "/(12[0-8]|1[01][0-9]|[1-9]?[0-9])$" . "" -}}
{{- $hex := regexReplaceAll (printf ":%s$" $v4) $address ":0:0" -}}
{{- $count := len (regexFindAll $group $hex -1) -}}
{{- if regexMatch (printf "^%s(/(3[0-2]|[12]?[0-9]))?$" $v4) . -}}yes
{{- else if and (regexMatch (printf "^(%s|(%s)?::(%s)?)$" $groups $groups $groups) $hex) (ternary (le $count 7) (eq $count 8) (contains "::" $hex)) -}}yes
{{- end -}}
{{- end -}}

{{- /*
What is wrong with a host and its port, or nothing. A host has spellings that a template cannot bring to one (R3): those are not taken, and
the message says how to write it.
*/ -}}
{{- define "golden-catalog.authority.error" -}}
{{- $host := regexReplaceAll ":[0-9]*$" . "" -}}
{{- $port := trimPrefix $host . | trimPrefix ":" -}}
{{- $v4 := include "golden-catalog.v4" "" -}}
{{- if gt (include "golden-catalog.port" $port | int) 65535 -}}
must have a port from 1 to 65535 behind its host's `:`, or none
{{- else if regexMatch "^\\[.*\\]$" $host -}}
{{-   $address := $host | lower | trimPrefix "[" | trimSuffix "]" -}}
{{-   $short := contains "::" $address -}}
{{-   $groups := regexFindAll "[0-9a-f]+" $address -1 -}}
{{- /* RFC 5952, as far as it is about hexadecimal groups: no longer run of zeros, and no earlier one of its length, than `::` stands for. */ -}}
{{-   $covered := ternary (sub 8 (len $groups) | int) 1 $short -}}
{{-   $long := regexMatch "(^|:)0::|::0(:|$)" $address -}}
{{-   range $index, $part := splitList "::" $address -}}
{{-     range regexFindAll "(:0:)+" (printf ":%s:" (replace ":" "::" $part)) -1 -}}
{{-       $zeros := div (len .) 3 | int -}}
{{-       if or (gt $zeros $covered) (and $short (eq $index 0) (eq $zeros $covered)) -}}{{- $long = true -}}{{- end -}}
{{-     end -}}
{{-   end -}}
{{-   $bytes := regexFind (printf "%s$" $v4) $address -}}
{{-   if and $bytes (include "golden-catalog.block" $address) -}}
{{-     $part := splitList "." $bytes -}}
must have an IPv6 address in hexadecimal groups alone: write `{{ printf "%x:%x" (add (mul 256 (index $part 0 | int)) (index $part 1 | int)) (add (mul 256 (index $part 2 | int)) (index $part 3 | int)) }}` for its `{{ $bytes }}`
{{-   else if or (not (regexMatch "^(::|([0-9a-f]{1,4})?(::?[0-9a-f]{1,4})*(::)?)$" $address)) (gt (len (splitList "::" $address)) 2) (and $short (gt (len $groups) 6)) (and (not $short) (ne (len $groups) 8)) (regexMatch "(^|:)0[0-9a-f]" $address) $long -}}
must have an IPv6 address as RFC 5952 writes one, without leading zeros and with `::` for its longest run of zeros, such as `[2001:db8::1]`
{{-   end -}}
{{- else if not (regexMatch "^[-_.0-9A-Za-z]+$" $host) -}}
must have a host of letters, digits, `-` and `.`, and a port that is a number; a name in other letters is written in its `xn--` form
{{- else if and (regexMatch "^(.*\\.)?([0-9]+|0[xX][0-9A-Fa-f]*)\\.?$" $host) (not (regexMatch (printf "^%s$" $v4) $host)) -}}
must have an IPv4 address as four decimal numbers up to 255, such as `10.0.0.1`
{{- end -}}
{{- end -}}

{{- /*
An address as the daemon compares one: scheme and host in lower case, the scheme's own port left out, no `.` and `..` in the path, escapes
where the URL standard has them, no slash alone.
*/ -}}
{{- define "golden-catalog.url" -}}
{{- $scheme := regexFind "^[A-Za-z]+://" . | lower -}}
{{- $rest := regexReplaceAll "^[A-Za-z]+://" . "" -}}
{{- $host := regexFind "^[^/?#\\\\]*" $rest -}}
{{- $rest = trimPrefix $host $rest -}}
{{- $host = regexReplaceAll ":0*([0-9]+)$" ($host | lower | trimSuffix ":") ":${1}" -}}
{{- if eq $scheme "https://" -}}{{- $host = trimSuffix ":443" $host -}}{{- else -}}{{- $host = trimSuffix ":80" $host -}}{{- end -}}
{{- $path := regexFind "^[^?#]*" $rest -}}
{{- $query := trimPrefix $path $rest | replace "'" "%27" -}}
{{- $steps := $path | replace "\\" "/" | replace "`" "%60" | replace "{" "%7B" | replace "}" "%7D" | trimPrefix "/" | splitList "/" -}}
{{- $kept := list -}}
{{- range $index, $step := $steps -}}
{{-   $dots := $step | lower | replace "%2e" "." -}}
{{-   $last := eq (add1 $index) (len $steps) -}}
{{-   if and $kept (eq $dots "..") -}}{{- $kept = initial $kept -}}{{- end -}}
{{-   if has $dots (list "." "..") -}}
{{-     if $last -}}{{- $kept = append $kept "" -}}{{- end -}}
{{-   else -}}
{{-     $kept = append $kept $step -}}
{{-   end -}}
{{- end -}}
{{- $path = printf "/%s" (join "/" $kept) -}}
{{- if and (eq $path "/") (not $query) -}}{{- $path = "" -}}{{- end -}}
{{- $tail := printf "%s%s" $path $query | replace "\"" "%22" | replace "<" "%3C" | replace ">" "%3E" -}}
{{- range regexFindAll "[^\\x00-\\x7f]" $tail -1 | uniq -}}{{- $tail = replace . (urlquery .) $tail -}}{{- end -}}
{{- $scheme }}{{ $host }}{{ $tail -}}
{{- end -}}

{{- /* The same as it may be shown: a query may hold a token. */ -}}
{{- define "golden-catalog.url.public" -}}
{{- $url := include "golden-catalog.url" . -}}
{{- $shown := regexReplaceAll "\\?.*$" $url "?…" -}}
{{- if not (regexMatch "^[a-z]+://[^/]+/" $shown) -}}{{- $shown = printf "%s/" $shown -}}{{- end -}}
{{- $shown -}}
{{- end -}}

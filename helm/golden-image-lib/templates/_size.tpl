{{- /*
Disk sizes as src/model/size.rs reads them: by value, whole bytes above zero, no exponent.

golden-image.size: arguments given (text, or a number as YAML has it) and out; sets out.bytes, or out.error with the same words as the
daemon.
*/ -}}
{{- define "golden-image.size" -}}
{{- $out := .out -}}
{{- $text := include "golden-image.size.text" .given -}}
{{- $shown := include "golden-image.shown" $text -}}
{{- $form := printf "%s is not a valid disk size: must be a whole number of bytes above zero, such as `6Gi`, `6144Mi` or `6442450944`" $shown -}}
{{- $large := printf "%s is not a valid disk size: is more than a Kubernetes quantity can hold" $shown -}}
{{- $factors := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "P" 1000000000000000 "E" 1000000000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- $number := regexFind "^[0-9.]*" $text -}}
{{- $suffix := trimPrefix $number $text -}}
{{- $parts := splitList "." $number -}}
{{- /* Leading zeros go, because int64 would read the rest as octal. */ -}}
{{- $whole := regexReplaceAll "^0+" (first $parts) "" -}}
{{- $fraction := "" -}}
{{- if eq (len $parts) 2 -}}{{- $fraction = regexReplaceAll "0+$" (last $parts) "" -}}{{- end -}}
{{- if or (not (hasKey $factors $suffix)) (gt (len $parts) 2) (not (regexMatch "[0-9]" $number)) (gt (len $fraction) 18) (gt (len $whole) 38) -}}
{{-   $_ := set $out "error" $form -}}
{{- else if regexMatch "^\\.|\\.$" $number -}}
{{-   $_ := set $out "error" (printf "%s is not a valid disk size: must have digits on both sides of its point, such as `0.5Gi`" $shown) -}}
{{- else -}}
{{-   $factor := get $factors $suffix | int64 -}}
{{-   if ge (mulf (float64 (printf "0%s.%s0" $whole $fraction)) (float64 $factor)) 9223372036854775807.0 -}}
{{-     $_ := set $out "error" $large -}}
{{-   else -}}
{{-     $rest := mulf (float64 (printf "0.%s0" $fraction)) (float64 $factor) -}}
{{-     $bytes := add (mul (int64 (default "0" $whole)) $factor) (int64 $rest) -}}
{{-     if or (ne (floor $rest) $rest) (eq $bytes 0) -}}
{{-       $_ := set $out "error" $form -}}
{{-     else -}}
{{-       $_ := set $out "bytes" $bytes -}}
{{-     end -}}
{{-   end -}}
{{- end -}}
{{- end -}}

{{- /*
A size as text. A bare number of a values file arrives as a float, so that 6442450944 would print as 6.442450944e+09 if it were not turned
back.
*/ -}}
{{- define "golden-image.size.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) (lt . 9.2e18) (ge . 0.0) -}}{{ int64 . }}{{- else -}}{{ toString . }}{{- end -}}
{{- end -}}

{{- /*
golden-image.quantity: a size as the API server reads one from a disk or claim (src/foreign/quantity.rs), which is wider: exponents,
thousandths, and fractions of a byte, rounded up. Arguments as for golden-image.size; sets out.bytes where it is one above zero.
*/ -}}
{{- define "golden-image.quantity" -}}
{{- $text := include "golden-image.size.text" .given | trim -}}
{{- $fits := le (len $text) 48 -}}
{{- $text = trimPrefix "+" $text -}}
{{- $factors := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "P" 1000000000000000 "E" 1000000000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- $number := regexFind "^[0-9.]*" $text -}}
{{- $suffix := trimPrefix $number $text -}}
{{- $shift := 0 -}}
{{- if regexMatch "^[eE][-+]?0*[0-9]{1,2}$" $suffix -}}
{{-   $digits := regexFind "[0-9]+$" $suffix -}}
{{-   $shift = regexReplaceAll "^0+([0-9])" $digits "$1" | int -}}
{{-   $fits = and $fits (le $shift 30) -}}
{{-   if contains "-" $suffix -}}{{- $shift = sub 0 $shift -}}{{- end -}}
{{-   $suffix = "" -}}
{{- else if hasKey (dict "m" 3 "u" 6 "n" 9) $suffix -}}
{{-   $shift = get (dict "m" -3 "u" -6 "n" -9) $suffix -}}
{{-   $suffix = "" -}}
{{- end -}}
{{- $parts := splitList "." $number -}}
{{- if and $fits (hasKey $factors $suffix) (le (len $parts) 2) (regexMatch "[0-9]" $number) -}}
{{-   $whole := first $parts -}}
{{-   $fraction := rest $parts | join "" -}}
{{- /* The point moves right or left, over zeros where there are no digits. */ -}}
{{-   if gt (int $shift) 0 -}}
{{-     $digits := printf "%s%s" $fraction (repeat (int $shift) "0") -}}
{{-     $whole = printf "%s%s" $whole (trunc (int $shift) $digits) -}}
{{-     $fraction = substr (int $shift) (len $digits) $digits -}}
{{-   else if lt (int $shift) 0 -}}
{{-     $digits := printf "%s%s" (repeat (sub 0 $shift | int) "0") $whole -}}
{{-     $at := add (len $digits) $shift | int -}}
{{-     $whole = trunc $at $digits -}}
{{-     $fraction = printf "%s%s" (substr $at (len $digits) $digits) $fraction -}}
{{-   end -}}
{{-   $whole = regexReplaceAll "^0+" $whole "" -}}
{{-   $factor := get $factors $suffix | int64 -}}
{{-   if and (le (len $whole) 19) (lt (mulf (float64 (printf "0%s.%s0" $whole $fraction)) (float64 $factor)) 9223372036854775807.0) -}}
{{-     $rest := mulf (float64 (printf "0.%s0" $fraction)) (float64 $factor) | ceil | int64 -}}
{{-     $bytes := add (mul (int64 (default "0" $whole)) $factor) $rest -}}
{{-     if gt $bytes 0 -}}{{- $_ := set .out "bytes" $bytes -}}{{- end -}}
{{-   end -}}
{{- end -}}
{{- end -}}

{{- /*
golden-image.size.show: a size as the daemon writes one, in the largest binary unit in which it is whole. Argument: bytes.
*/ -}}
{{- define "golden-image.size.show" -}}
{{- $shown := toString . -}}
{{- $factor := 1 | int64 -}}
{{- range $suffix := list "Ki" "Mi" "Gi" "Ti" "Pi" -}}
{{-   $factor = mul $factor 1024 -}}
{{-   if eq (mod $ $factor) 0 -}}{{- $shown = printf "%d%s" (div $ $factor) $suffix -}}{{- end -}}
{{- end -}}
{{- $shown -}}
{{- end -}}

{{- /*
golden-image.size.pair: two sizes in the largest unit in which they can be told apart with at most two decimals, 5722.04Mi and 6144Mi
(in_one_unit in src/rules/size.rs). Arguments a and b (bytes) and out; sets out.a and out.b.
*/ -}}
{{- define "golden-image.size.pair" -}}
{{- $out := .out -}}
{{- $a := int64 .a -}}
{{- $b := int64 .b -}}
{{- range $unit := list (list "Ti" 1099511627776) (list "Gi" 1073741824) (list "Mi" 1048576) (list "Ki" 1024) -}}
{{-   $suffix := first $unit -}}
{{-   $factor := last $unit | int64 -}}
{{-   $hundredsA := div (mul $a 100) $factor -}}
{{-   $hundredsB := div (mul $b 100) $factor -}}
{{-   $exact := and (eq (mul $hundredsA $factor) (mul $a 100)) (eq (mul $hundredsB $factor) (mul $b 100)) -}}
{{-   $apart := ne $hundredsA $hundredsB -}}
{{-   $some := and (ge $a $factor) (ge $b $factor) -}}
{{-   if and (not (hasKey $out "a")) $some (or $exact (and (eq $suffix "Mi") $apart)) (or $apart (eq $a $b)) -}}
{{-     $_ := set $out "a" (printf "%s%s" (include "golden-image.size.hundredths" $hundredsA) $suffix) -}}
{{-     $_ := set $out "b" (printf "%s%s" (include "golden-image.size.hundredths" $hundredsB) $suffix) -}}
{{-   end -}}
{{- end -}}
{{- if not (hasKey $out "a") -}}
{{-   $_ := set $out "a" (toString $a) -}}
{{-   $_ := set $out "b" (toString $b) -}}
{{- end -}}
{{- end -}}

{{- define "golden-image.size.hundredths" -}}
{{- $rest := mod . 100 -}}
{{- div . 100 -}}
{{- if $rest -}}.{{ printf "%02d" $rest | trimSuffix "0" }}{{- end -}}
{{- end -}}

{{- /*
The claim that CDI makes for a disk of this many bytes on a file system: rounded up to whole MiB, then enlarged by the class's overhead
(GetRequiredSpace in CDI's pkg/util). Arguments bytes, overhead (a fraction as text, such as "0.06"); returns bytes.
*/ -}}
{{- define "golden-image.size.inflated" -}}
{{- $aligned := mul (div (add (int64 .bytes) 1048575) 1048576) 1048576 -}}
{{- mulf (float64 $aligned) (addf 1.0 (float64 .overhead)) | ceil | int64 -}}
{{- end -}}

{{- /*
The smallest size, in whole MiB, of which CDI makes a claim of at least this many bytes on a file system (smallest_for in
src/rules/size.rs). Arguments bytes, overhead; returns bytes.
*/ -}}
{{- define "golden-image.size.smallest" -}}
{{- $found := dict -}}
{{- $from := sub (div (divf (float64 .bytes) (addf 1.0 (float64 .overhead)) | floor | int64) 1048576) 1 | max 1 -}}
{{- range $more := until 4 -}}
{{-   $bytes := mul (add $from $more) 1048576 -}}
{{-   if and (not (hasKey $found "bytes")) (ge (add (include "golden-image.size.inflated" (dict "bytes" $bytes "overhead" $.overhead) | int64) 1) (int64 $.bytes)) -}}
{{-     $_ := set $found "bytes" $bytes -}}
{{-   end -}}
{{- end -}}
{{- get $found "bytes" | default .bytes -}}
{{- end -}}

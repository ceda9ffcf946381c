{{- /*
What an image is, and what its golden is called (docs/architecture.md, "Names"; src/model/identity.rs and names.rs).

Argument of both line and name: a dict with exactly one of
  talosFactory   {schematicID, version, platform, architecture, secureBoot}
  containerDisk  {reference (pinned) or digest, architecture}
  http           {url, architecture}
The name also takes image (the GoldenImage's name), virtualMachine and kairos (booleans), and class for a target that is not the first.
*/ -}}
{{- define "golden-image.identity.line" -}}
{{- with .talosFactory -}}
talosFactory/{{ .schematicID }}/{{ .version }}/{{ .platform | default "openstack" }}/{{ .architecture | default "amd64" }}{{ if .secureBoot }}/secureboot{{ end }}
{{- end -}}
{{- with .containerDisk -}}
containerDisk/{{ .digest | default (.reference | default "" | splitList "@" | last) }}/{{ .architecture | default "amd64" }}
{{- end -}}
{{- with .http -}}
http/{{ .url }}/{{ .architecture | default "amd64" }}
{{- end -}}
{{- end -}}

{{- /* The identity of a line: the first 40 hex characters of its sha256. A label holds it, which it cannot do with a golden's name. */ -}}
{{- define "golden-image.identity.ofLine" -}}{{ sha256sum . | trunc 40 }}{{- end -}}

{{- define "golden-image.identity" -}}{{ include "golden-image.identity.line" . | include "golden-image.identity.ofLine" }}{{- end -}}

{{- define "golden-image.name" -}}
{{- if .talosFactory -}}
{{-   $platform := .talosFactory.platform | default "openstack" -}}
{{-   $architecture := .talosFactory.architecture | default "amd64" -}}
talos-worker-{{ .talosFactory.schematicID }}-{{ .talosFactory.version }}
{{-   if or (ne $platform "openstack") (ne $architecture "amd64") .talosFactory.secureBoot }}-{{ $platform }}-{{ $architecture }}{{ end }}
{{-   if .talosFactory.secureBoot }}-secureboot{{ end }}
{{- else if .virtualMachine -}}
vm-default-images-{{ .image }}
{{- else if .kairos -}}
kairos-worker-{{ .image }}
{{- else -}}
golden-{{ .image }}
{{- end -}}
{{- with .class }}-{{ . }}{{ end -}}
{{- end -}}

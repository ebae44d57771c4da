{{- define "sluice.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "sluice.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "sluice.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* What a pod needs, under what the values say. */}}
{{- define "sluice.config" -}}
{{- $pod := dict "kubernetes" (dict "enabled" true) "manifests" (dict "directory" "") -}}
{{- $header := dict "apiVersion" "sluice.dev/v1alpha1" "kind" "GatewayConfiguration" -}}
{{- toYaml (mergeOverwrite $pod (deepCopy .Values.config) $header) -}}
{{- end }}

{{/* Where Prometheus asks; empty where the configuration says nowhere. */}}
{{- define "sluice.metricsAddress" -}}
{{- $m := get .Values.config "metrics" | default dict -}}
{{- if hasKey $m "address" }}{{ $m.address }}{{ else }}:9470{{ end -}}
{{- end }}

{{- define "sluice.metricsPort" -}}
{{- include "sluice.metricsAddress" . | splitList ":" | last -}}
{{- end }}

{{/* Directories of the host that are mounted where the configuration has them. */}}
{{- define "sluice.stateDir" -}}
{{- include "sluice.mountable" (list "stateDir" (get .Values.config "stateDir" | default "/run/sluice")) -}}
{{- end }}

{{- define "sluice.statusSocket" -}}
{{- include "sluice.stateDir" . }}/status.sock
{{- end }}

{{- define "sluice.mountable" -}}
{{- $what := index . 0 }}{{ $path := clean (index . 1) -}}
{{- if or (not (isAbs $path)) (has $path (list "/" "/run" "/var" "/var/run" "/etc" "/bin" "/proc" "/sys" "/dev" "/host" "/tmp")) -}}
{{- fail (printf "config: %s is %s: it is mounted from the host, so give it a directory of its own, such as /run/sluice" $what $path) -}}
{{- end -}}
{{- $path -}}
{{- end }}

{{/* The command of a probe: (list . "live") or (list . "ready"). */}}
{{- define "sluice.probe" -}}
{{- $root := index . 0 -}}
{{- toJson (list "/bin/sluice" "--socket" (include "sluice.statusSocket" $root) "probe" (index . 1)) -}}
{{- end }}

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
{{ .Values.serviceAccount.name | default (include "sluice.name" .) }}
{{- end }}

{{/* What a pod needs, under what the values say. */}}
{{- define "sluice.config" -}}
{{- $pod := dict "kubernetes" (dict "enabled" true) "manifests" (dict "directory" "") "hostLink" (dict "procSys" "/host/proc/sys") -}}
{{- $header := dict "apiVersion" "sluice.dev/v1alpha1" "kind" "GatewayConfiguration" -}}
{{- toYaml (mergeOverwrite $pod (deepCopy .Values.config) $header) -}}
{{- end }}

{{/* Where probes and Prometheus ask; empty where the configuration says nowhere. */}}
{{- define "sluice.metricsAddress" -}}
{{- $m := get .Values.config "metrics" | default dict -}}
{{- if hasKey $m "address" }}{{ $m.address }}{{ else }}:9470{{ end -}}
{{- end }}

{{- define "sluice.metricsPort" -}}
{{- include "sluice.metricsAddress" . | splitList ":" | last -}}
{{- end }}

{{/* The host of probes: that of the address, or the node's where it is any. */}}
{{- define "sluice.probeHost" -}}
{{- $host := include "sluice.metricsAddress" . | trimSuffix (printf ":%s" (include "sluice.metricsPort" .)) | trimAll "[]" -}}
{{- if not (has $host (list "" "0.0.0.0" "::")) }}
host: {{ $host | quote }}
{{- end -}}
{{- end }}

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

{{/* Labels of the controller's pods, which the gateways' selector must not match. */}}
{{- define "sluice.controllerSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-controller
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.controllerLabels" -}}
{{ include "sluice.controllerSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "sluice.announcerSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-announcer
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.announcerLabels" -}}
{{ include "sluice.announcerSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "sluice.nodeSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-node
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.nodeLabels" -}}
{{ include "sluice.nodeSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "sluice.doctorSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-doctor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.doctorLabels" -}}
{{ include "sluice.doctorSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* The gateways' tunnel, as nodes end it: fields vni and port. Rejects values with which nodes would end none. */}}
{{- define "sluice.tunnel" -}}
{{- $given := get .Values.config "directReturn" | default dict -}}
{{- $vni := get $given "vni" | default 0 | int64 -}}
{{- if or (lt $vni 1) (gt $vni 16777215) -}}
{{- fail (printf "nodeTunnel.gateways: nodes cannot end the gateways' tunnel, because config.directReturn.vni is %d: set it to a number from 1 to 16777215, which no other VXLAN of the nodes has" $vni) -}}
{{- end -}}
{{- $octet := "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])" -}}
{{- $v4 := printf "%s(\\.%s){3}(/(3[0-2]|[12]?[0-9]))?" $octet $octet -}}
{{- $v6 := "[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:]*:[0-9A-Fa-f.]*(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?" -}}
{{- range .Values.nodeTunnel.gateways -}}
{{- if not (regexMatch (printf "^(%s|%s)$" $v4 $v6) .) -}}
{{- fail (printf "nodeTunnel.gateways: %q is neither an address nor a prefix: give the addresses from which gateways send to nodes, such as 10.0.1.2 or 10.0.2.0/28" .) -}}
{{- end -}}
{{- end -}}
vni: {{ $vni }}
port: {{ get $given "port" | default 4789 | int64 }}
{{- end }}

{{/* Rejects values with which the announcer could not read the password of an existing BGPPeer: an upgrade
     would end its session on all gateways. */}}
{{- define "sluice.checkPasswordSecrets" -}}
{{- $peers := list -}}
{{- if .Capabilities.APIVersions.Has "sluice.dev/v1alpha1/BGPPeer" -}}
{{- $peers = get (lookup "sluice.dev/v1alpha1" "BGPPeer" "" "") "items" | default list -}}
{{- end -}}
{{- range $peers -}}
{{- $secret := dig "spec" "passwordSecret" dict . | default dict -}}
{{- $name := get $secret "name" -}}
{{- $own := eq (get $secret "namespace" | default $.Release.Namespace) $.Release.Namespace -}}
{{- if and $name $own (not (has $name $.Values.announcer.passwordSecrets)) -}}
{{- fail (printf "BGPPeer %s has its password in the Secret %s, which the announcer would have no right to read, and its session would end: add the name to announcer.passwordSecrets" .metadata.name $name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* How long an announcer must run before the next one is replaced: it joins its links and takes its VIPs. */}}
{{- define "sluice.announcerReady" -}}
{{- $millis := 0 -}}
{{- range regexFindAll "[0-9]+(ms|s)" .Values.announcer.layer2.join -1 }}
{{- $one := regexFind "[0-9]+" . | int -}}
{{- $millis = add $millis (ternary $one (mul 1000 $one) (hasSuffix "ms" .)) -}}
{{- end -}}
{{- add 3 (div (add $millis 999) 1000) -}}
{{- end }}

{{- define "sluice.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "sluice.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "sluice.daemonSet" -}}
{{ .Release.Namespace }}/{{ include "sluice.name" . }}
{{- end }}

{{/* The Secret with the seed of backend selection; empty if the configuration has another. */}}
{{- define "sluice.seedSecret" -}}
{{- if not (dig "maglev" "seedFile" "" .Values.config) -}}
{{- .Values.seedSecret | default (printf "%s-maglev" (include "sluice.name" .)) -}}
{{- end -}}
{{- end }}

{{/* The members of the group of gateways, or the selector of their Nodes, if there is a group. */}}
{{- define "sluice.group" -}}
{{- $members := dig "group" "members" list .Values.config | default list -}}
{{- $nodes := dig "group" "nodes" "" .Values.config | default "" -}}
{{- $given := or .Values.group.secret .Values.group.issuerRef -}}
{{- $files := dig "group" "tls" "certFile" "" .Values.config -}}
{{- if and $given (not (or $members $nodes)) -}}
{{- fail "group: it has certificates, but config.group.members is empty: list the gateways there, or select their Nodes by config.group.nodes (docs/group.md), or leave group empty" -}}
{{- else if and $members $nodes -}}
{{- fail "config.group: members lists the gateways, and nodes selects their Nodes: set one of them" -}}
{{- else if and $given $files -}}
{{- fail "group: config.group.tls names files of your own: remove it, or leave group empty" -}}
{{- else if and .Values.group.secret .Values.group.issuerRef -}}
{{- fail "group: secret names a Secret of your own, and issuerRef lets cert-manager make one: set one of them" -}}
{{- end -}}
{{- if $members }}{{ toJson $members }}{{ else }}{{ $nodes }}{{ end -}}
{{- end }}

{{/* The Secret with the authority that gateways of a group share; empty if the configuration has other files. */}}
{{- define "sluice.groupSecret" -}}
{{- if and (include "sluice.group" .) (not (dig "group" "tls" "certFile" "" .Values.config)) -}}
{{- .Values.group.secret | default (printf "%s-group" (include "sluice.name" .)) -}}
{{- end -}}
{{- end }}

{{- define "sluice.groupDir" -}}
{{- include "sluice.mountable" (list "group.stateDir" (dig "group" "stateDir" "/var/lib/sluice" .Values.config)) -}}
{{- end }}

{{/* The configuration: fields that a pod needs, overridden by config of the values. */}}
{{- define "sluice.config" -}}
{{- $selector := list -}}
{{- range $label, $value := .Values.nodeSelector }}{{ $selector = append $selector (printf "%s=%s" $label $value) }}{{ end -}}
{{- $kubernetes := dict "enabled" true "nodeSelector" (join "," $selector) "daemonSet" (include "sluice.daemonSet" .) -}}
{{- $pod := dict "kubernetes" $kubernetes "manifests" (dict "directory" "") -}}
{{- if .Values.podMonitor.enabled }}{{ $_ := set $pod "metrics" (dict "address" ":9470") }}{{ end -}}
{{- $given := deepCopy .Values.config -}}
{{- if include "sluice.seedSecret" . }}{{ $_ := set $given "maglev" (dict "seedFile" "/etc/sluice-maglev/seed") }}{{ end -}}
{{- if include "sluice.groupSecret" . }}{{ $_ := set $pod "group" (dict "tls" (dict "certFile" "/etc/sluice-group/tls.crt" "keyFile" "/etc/sluice-group/tls.key" "caFile" "/etc/sluice-group/ca.crt")) }}{{ end -}}
{{- $header := dict "apiVersion" "sluice.dev/v1alpha1" "kind" "GatewayConfiguration" -}}
{{- toYaml (mergeOverwrite $pod $given $header) -}}
{{- end }}

{{/* The address that Prometheus scrapes; empty if the configuration has none, or a loopback address. */}}
{{- define "sluice.metricsAddress" -}}
{{- $address := dig "metrics" "address" (ternary ":9470" "" .Values.podMonitor.enabled) .Values.config -}}
{{- if not (or (hasPrefix "127." $address) (hasPrefix "[::1]" $address)) }}{{ $address }}{{ end -}}
{{- end }}

{{- define "sluice.metricsPort" -}}
{{- include "sluice.metricsAddress" . | splitList ":" | last -}}
{{- end }}

{{/* Directories of the host, mounted at their paths in the configuration. */}}
{{- define "sluice.stateDir" -}}
{{- include "sluice.mountable" (list "stateDir" (get .Values.config "stateDir" | default "/run/sluice")) -}}
{{- end }}

{{- define "sluice.statusSocket" -}}
{{- include "sluice.stateDir" . }}/status.sock
{{- end }}

{{/* The directory of the socket for readers; empty if there is none. */}}
{{- define "sluice.readersDir" -}}
{{- if dig "readers" "group" "" .Values.config -}}
{{- include "sluice.mountable" (list "the directory of readers.socket" (dir (dig "readers" "socket" "/run/sluice-readers/status.sock" .Values.config))) -}}
{{- end -}}
{{- end }}

{{/* The group of readers. The pod has neither CAP_CHOWN nor the names of the node's groups. */}}
{{- define "sluice.readersGroup" -}}
{{- $group := dig "readers" "group" "" .Values.config | toString -}}
{{- if not (regexMatch "^[0-9]+$" $group) -}}
{{- fail (printf "config: readers.group is %s: write the number of the group, in quotes, because the image has no names of groups" $group) -}}
{{- end -}}
{{- $group -}}
{{- end }}

{{- define "sluice.mountable" -}}
{{- $what := index . 0 }}{{ $path := clean (index . 1) -}}
{{- if or (not (isAbs $path)) (has $path (list "/" "/run" "/var" "/var/lib" "/var/run" "/etc" "/bin" "/proc" "/sys" "/dev" "/host" "/tmp")) -}}
{{- fail (printf "config: %s is %s: it is mounted from the host, so give it a directory of its own, such as /run/sluice" $what $path) -}}
{{- end -}}
{{- $path -}}
{{- end }}

{{/* The command of a probe: (list . "live") or (list . "ready"). */}}
{{- define "sluice.probe" -}}
{{- $root := index . 0 -}}
{{- toJson (list "/bin/sluice" "--socket" (include "sluice.statusSocket" $root) "probe" (index . 1)) -}}
{{- end }}

{{/* Go's soft limit for a program whose memory is mostly heap: four fifths of the pod's limit. */}}
{{- define "sluice.goMemoryLimit" -}}
{{- $limit := dig "limits" "memory" "" . | toString -}}
{{- if regexMatch "^[0-9]+[MG]i$" $limit -}}
{{- $mebi := mul (regexFind "^[0-9]+" $limit | int64) (ternary 1024 1 (hasSuffix "Gi" $limit)) -}}
{{- printf "%dMiB" (div (mul 4 $mebi) 5) -}}
{{- end -}}
{{- end }}

{{/* The gateway's memory limit, in MiB: its tables twice, because both sizes of a table exist during a change,
     and 1.5 GiB for everything else (docs/operations.md, Memory limits). */}}
{{- define "sluice.gatewayMemory" -}}
{{- $flows := dig "flows" dict .Values.config -}}
{{- $tuning := dig "tuning" dict .Values.config -}}
{{- $bytes := mul 94 (get $flows "ipv4" | default 1048576 | int64) -}}
{{- $bytes = add $bytes (mul 160 (get $flows "ipv6" | default 262144 | int64)) -}}
{{- $bytes = add $bytes (mul 103 (get $tuning "affinityClients" | default 262144 | int64)) -}}
{{- $bytes = add $bytes (mul 64 (get $tuning "limitSources" | default 65536 | int64)) -}}
{{- add 1536 (div (add (mul 2 $bytes) 1048575) 1048576) -}}
{{- end }}

{{- define "sluice.gatewayResources" -}}
{{- $given := dig "limits" "memory" "" .Values.resources -}}
{{- $limit := dict "limits" (dict "memory" (printf "%sMi" (include "sluice.gatewayMemory" .))) -}}
{{- toYaml (ternary .Values.resources (mergeOverwrite (deepCopy .Values.resources) $limit) (ne ($given | toString) "")) -}}
{{- end }}

{{/* Names. */}}
{{- define "tailwind.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "tailwind.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "tailwind.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tailwind.operator" -}}
{{- printf "%s-operator" (include "tailwind.fullname" .) -}}
{{- end -}}

{{/* Names of cluster-wide objects: no two releases may share them. A namespace has no dot, so the first dot ends the namespace; a
name without one is of the usual namespace. */}}
{{- define "tailwind.clusterName" -}}
{{- $name := include "tailwind.operator" . -}}
{{- $short := and (eq .Release.Namespace "tailwind-system") (not (contains "." $name)) -}}
{{- if $short -}}{{ $name }}{{- else -}}{{ .Release.Namespace }}.{{ $name }}{{- end -}}
{{- end -}}

{{- define "tailwind.webhook" -}}
{{- printf "%s-webhook" (include "tailwind.fullname" .) -}}
{{- end -}}

{{- define "tailwind.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "tailwind.operator" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* Labels. The selector's labels never change. */}}
{{- define "tailwind.selector" -}}
app.kubernetes.io/name: {{ include "tailwind.name" . }}-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tailwind.labels" -}}
{{ include "tailwind.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tailwind
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An image: (dict "root" $ "image" .Values.image). */}}
{{- define "tailwind.image" -}}
{{- $registry := .root.Values.registry | trimSuffix "/" -}}
{{- if $registry }}{{ $registry }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest -}}
@{{ .image.digest }}
{{- else -}}
:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The definition without CEL rules. Servers before 1.25 do not know them, and their server-side apply rejects them. The
operator checks the same rules. */}}
{{- define "tailwind.withoutRules" -}}
{{- $skip := -1 -}}
{{- range $line := splitList "\n" . -}}
{{- $text := trim $line -}}
{{- $indent := sub (len $line) (len (regexReplaceAll "^ +" $line "")) | int -}}
{{- if and (ge $skip 0) $text (or (lt $indent $skip) (and (eq $indent $skip) (not (hasPrefix "- " $text)))) -}}
{{- $skip = -1 -}}
{{- end -}}
{{- if eq $text "x-kubernetes-validations:" -}}
{{- $skip = $indent -}}
{{- end -}}
{{- if lt $skip 0 }}{{ $line }}
{{ end -}}
{{- end -}}
{{- end -}}

{{/* Rules of files/permissions.yaml, each below its reason: (dict "root" $ "scope" "groups"). */}}
{{- define "tailwind.rules" -}}
{{- $root := .root -}}
{{- $scope := "" -}}
{{- $reason := "" -}}
{{- $rule := "" -}}
{{- range $line := append (splitList "\n" (.root.Files.Get "files/permissions.yaml")) "end:" -}}
{{- if or (hasPrefix "#" $line) (hasSuffix ":" $line) -}}
{{- /* Without a webhook nothing is kept for it. */ -}}
{{- $kept := or $root.Values.webhook.enabled (not (and (eq $scope "own") (contains "\"secrets\"" $rule))) -}}
{{- if and $rule (eq $scope $.scope) $kept }}{{ $rule }}{{ end -}}
{{- $rule = "" -}}
{{- end -}}
{{- if hasPrefix "#" $line -}}
{{- $reason = $line -}}
{{- else if hasSuffix ":" $line -}}
{{- $scope = trimSuffix ":" $line -}}
{{- else if $line -}}
{{- if hasPrefix "- " $line }}{{ $rule = printf "%s\n" $reason }}{{ end -}}
{{- $rule = printf "%s%s\n" $rule $line -}}
{{- if and (eq $scope "webhook") (hasPrefix "  resources:" $line) -}}
{{- $rule = printf "%s  resourceNames: [%q]\n" $rule (include "tailwind.clusterName" $root) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

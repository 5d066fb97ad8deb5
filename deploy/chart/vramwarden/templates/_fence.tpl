{{/*
The fence: what the API server checks by itself, and so also while we are away. Each policy is a value.
What depends on the rules of the policy in force reads them from the ConfigMap vramwarden-fence, which the
replicas write (webhook/core/policy/fence.py says how). Where it is missing, before the first replica is
ready and after the namespace is deleted, those policies hold nothing.
*/}}

{{/* Whether the cluster has a kind of admission policy; empty for no. Call with a dict of root and, unless
it is a ValidatingAdmissionPolicy of Kubernetes 1.30, kind and version. */}}
{{- define "vramwarden.hasAdmissionPolicies" -}}
{{- $before := include "vramwarden.isBefore" (dict "root" .root "version" (.version | default "1.30")) }}
{{- $kind := printf "admissionregistration.k8s.io/v1/%s" (.kind | default "ValidatingAdmissionPolicy") }}
{{- $known := or (.root.Capabilities.APIVersions.Has $kind) (not (include "vramwarden.isLive" .root)) }}
{{- if and (not $before) $known }}true{{ end }}
{{- end }}

{{/* Whether a policy of the fence is installed; empty for no. Call with a dict as above, and name: the
value's. */}}
{{- define "vramwarden.hasFence" -}}
{{- if index .root.Values.fence .name }}{{ include "vramwarden.hasAdmissionPolicies" . }}{{ end }}
{{- end }}

{{/* Whether the second line is installed; empty for no. */}}
{{- define "vramwarden.hasSecondLine" -}}
{{- include "vramwarden.hasFence" (dict "root" . "name" "secondLine") }}
{{- end }}

{{/* Whether our own accounts are held to what is theirs; empty for no. */}}
{{- define "vramwarden.hasAccountsFence" -}}
{{- include "vramwarden.hasFence" (dict "root" . "name" "accounts") }}
{{- end }}

{{/* Whether unclaimed containers are voided; empty for no. */}}
{{- define "vramwarden.hasVoid" -}}
{{- include "vramwarden.hasFence" (dict "root" . "name" "void" "kind" "MutatingAdmissionPolicy" "version" "1.36") }}
{{- end }}

{{/* The binding of a ValidatingAdmissionPolicy; call with a dict of root and component. */}}
{{- define "vramwarden.fenceBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "vramwarden.metadata" . | nindent 2 }}
spec:
  policyName: vramwarden-{{ .component }}
  {{- with .paramRef }}
  {{- . | nindent 2 }}
  {{- end }}
  validationActions: [Deny]
{{- end }}

{{/* In a binding: where the rules are. */}}
{{- define "vramwarden.fenceParamRef" -}}
paramRef:
  name: vramwarden-fence
  namespace: {{ .Release.Namespace | quote }}
  parameterNotFoundAction: Allow
{{- end }}

{{/* In CEL: the lines of the rules, each as the list of its fields and words. */}}
{{- define "vramwarden.fenceAllLines" -}}
params.?data[?'rules.v2'].orValue('').split('\n').filter(line,
line != '').map(line, line.split(' '))
{{- end }}

{{/* In CEL: those that match the namespace; the first one governs its pods. Fields are a pattern for its
name and labels that it must have, and the same of the exception; all that follows is words. Conditions of a
match know no namespace. */}}
{{- define "vramwarden.fenceLines" -}}
[namespaceObject.metadata.?labels.orValue({})].map(labels,
{{ include "vramwarden.fenceAllLines" . }}.filter(line,
{{ include "vramwarden.fenceIsAt" 0 }} && !({{ include "vramwarden.fenceIsAt" 2 }})))[0]
{{- end }}

{{/* In CEL: whether the namespace is that of two fields of a line; call with the index of the first. */}}
{{- define "vramwarden.fenceIsAt" -}}
{{- $labels := printf "line[%d]" (add . 1) -}}
request.namespace.matches(line[{{ . }}])
&& ({{ $labels }} == '-' || {{ $labels }}.split(',').all(label, [label.split('=')].exists(pair,
labels[?pair[0]] == optional.of(pair[1]))))
{{- end }}

{{/* In CEL: whether a pod has a list that is too long to be judged. Of each limit the API server has made a
request, too. */}}
{{- define "vramwarden.fenceTooMany" -}}
object.metadata.?annotations.orValue({}).size() > 4096
|| [object.spec.?containers.orValue([]) + object.spec.?initContainers.orValue([])
+ object.spec.?ephemeralContainers.orValue([])].exists(all, all.size() > 512
|| all.exists(container, container.?env.orValue([]).size() > 4096
|| container.?resources.?requests.orValue({}).size() > 256))
{{- end }}

{{/* The name by which the API server knows an account of ours; call with a dict of root and component, and
namespace unless it is the release's. */}}
{{- define "vramwarden.account" -}}
system:serviceaccount:{{ .namespace | default .root.Release.Namespace }}:vramwarden-{{ .component }}
{{- end }}

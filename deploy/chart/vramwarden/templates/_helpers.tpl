{{/*
All names are fixed, whatever the release is called: the annotations on pods are one per cluster, so a
second release would translate every pod twice. As it is, Helm rejects it, and each command in the
pages of deploy/ is right everywhere.
*/}}

{{- define "vramwarden.labels" -}}
app.kubernetes.io/name: vramwarden
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Call with a dict of root and component. */}}
{{- define "vramwarden.metadata" -}}
name: vramwarden-{{ .component }}
{{- /* The labels come last, so that some can be added. */}}
labels:
  {{- include "vramwarden.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "vramwarden.namespacedMetadata" -}}
namespace: {{ .root.Release.Namespace | quote }}
{{ include "vramwarden.metadata" . }}
{{- end }}

{{- define "vramwarden.selector" -}}
app.kubernetes.io/name: vramwarden
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* Call with a dict of image and root. */}}
{{- define "vramwarden.image" -}}
{{- with .image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.root.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* How a text names a page of the documentation, as webhook/core/documentation.py. Call with a dict of root and
page, such as deploy/nodes#runtimeclass. */}}
{{- define "vramwarden.page" -}}
{{- $page := regexReplaceAll "#.*" .page "" }}
{{- $anchor := trimPrefix $page .page }}
{{- with .root.Values.documentationURL }}{{ replace "{page}" $page . }}{{ $anchor }}
{{- else }}{{ $page }}.md{{ $anchor }} in the documentation{{ end }}
{{- end }}

{{/* The variable by which webhook and agent name them, too; none without the value. */}}
{{- define "vramwarden.documentationEnv" -}}
{{- with .Values.documentationURL -}}
- {name: VRAMWARDEN_DOCUMENTATION_URL, value: {{ . | quote }}}
{{- end }}
{{- end }}

{{/* What Pod Security `restricted` asks for. The user is the image's own, a number that is not 0, so
that OpenShift may put its own in its place. */}}
{{- define "vramwarden.podSecurityContext" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "vramwarden.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The RuntimeClass of what reads a node's GPUs; call with a dict of root and name: that of a value. Without
a cluster, as in `helm template`, `Auto` finds none, and for a fixed amount none is needed. */}}
{{- define "vramwarden.runtimeClass" -}}
{{- $name := default "" .name }}
{{- if eq $name "Auto" }}
{{- $found := and (not .root.Values.agent.vram) (lookup "node.k8s.io/v1" "RuntimeClass" "" "nvidia") }}
{{- $name = $found | empty | ternary "" "nvidia" }}
{{- end }}
{{- $name }}
{{- end }}

{{/* Whether the sentry is installed; empty for no. Where no driver is asked there is nothing to see. */}}
{{- define "vramwarden.hasSentry" -}}
{{- if and .Values.sentry.enabled (not .Values.agent.vram) }}true{{ end }}
{{- end }}

{{/* Whether the sentry shares the release's own namespace; empty for no. */}}
{{- define "vramwarden.hostsSentry" -}}
{{- if and (include "vramwarden.hasSentry" .) (eq .Values.sentry.namespace .Release.Namespace) }}true{{ end }}
{{- end }}

{{/* Whether the limiter is installed, too; empty for no. It tells the sentry alone what it does. */}}
{{- define "vramwarden.hasLimiter" -}}
{{- if and .Values.limiter.enabled (include "vramwarden.hasSentry" .) }}true{{ end }}
{{- end }}

{{/* Of what is in the sentry's namespace; call with a dict of root and component. */}}
{{- define "vramwarden.besideSentry" -}}
namespace: {{ .root.Values.sentry.namespace | quote }}
{{ include "vramwarden.metadata" . }}
{{- end }}

{{/* Where the limiter leaves what it did, of the node. */}}
{{- define "vramwarden.limiterFolder" -}}
- name: limiter
  hostPath: {path: /run/vramwarden-limiter, type: DirectoryOrCreate}
{{- end }}

{{/* Of the sentry itself. */}}
{{- define "vramwarden.sentryMetadata" -}}
{{- include "vramwarden.besideSentry" (dict "root" . "component" "sentry") }}
{{- end }}

{{/* The account of what reads its node's list of which pods have which of the GPUs, and what each may use; it
reads no pods. Call with a dict of root and component. */}}
{{- define "vramwarden.readsLists" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "vramwarden.besideSentry" . | nindent 2 }}
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "vramwarden.namespacedMetadata" . | nindent 2 }}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [get, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "vramwarden.namespacedMetadata" . | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: vramwarden-{{ .component }}}
subjects:
- {kind: ServiceAccount, name: vramwarden-{{ .component }}, namespace: {{ .root.Values.sentry.namespace | quote }}}
{{- end }}

{{/* Of a pod that is on each of the agent's nodes and sees their GPUs as it does: where it goes. */}}
{{- define "vramwarden.onGpuNodes" -}}
{{- $of := .Values.agent -}}
automountServiceAccountToken: true
{{- with eq .Values.priorityClassName "Auto" | ternary "system-node-critical" .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with include "vramwarden.runtimeClass" (dict "root" . "name" $of.runtimeClassName) }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $of.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $of.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $of.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Of the container of such a pod: its image, its variables, what it mounts. The webhook does not see such
pods, since their namespaces are exempt: the driver's library is for reading, and none to compute with. A
toolkit that reads volume mounts reads them first. One that does not starts the container all the same with
void, and the agent says what is missing; with the mounts' folder, as NVIDIA's device plugin sets it, mode cdi
would not start it. */}}
{{- define "vramwarden.gpuImage" -}}
image: {{ include "vramwarden.image" (dict "image" .Values.image "root" .) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "vramwarden.gpuEnv" -}}
- {name: NVIDIA_VISIBLE_DEVICES, value: {{ eq .Values.agent.gpuAccess "VolumeMounts" | ternary "void" "all" }}}
- {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
{{- with .Values.agent.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "vramwarden.gpuMounts" -}}
{{- if eq .Values.agent.gpuAccess "VolumeMounts" }}
- {name: all-gpus, mountPath: /var/run/nvidia-container-devices/all}
{{- end }}
{{- with .Values.agent.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What mounts them. */}}
{{- define "vramwarden.gpuVolumes" -}}
{{- if eq .Values.agent.gpuAccess "VolumeMounts" }}
# What the toolkit reads is the name under which it is mounted.
- name: all-gpus
  hostPath: {path: /dev/null}
{{- end }}
{{- with .Values.agent.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The policy files, by name, as one JSON object. */}}
{{- define "vramwarden.policies" -}}
{{- $files := deepCopy (.Values.policies.files | default dict) }}
{{- if and .Values.policies.shipped (not (hasKey $files "default.yaml")) }}
{{- $_ := set $files "default.yaml" (.Files.Get "files/default.yaml") }}
{{- end }}
{{- toJson $files }}
{{- end }}

{{/* A regular expression for a list of namespaces in which * is any text. Names have no character but
* that means anything in one; values.schema.json and the policies' own schema see to it. */}}
{{- define "vramwarden.namespacePattern" -}}
^({{ join "|" . | replace "*" ".*" }})$
{{- end }}

{{/* Exempt by name, which nobody can forge, as one JSON list; the label is for cluster admins. */}}
{{- define "vramwarden.exemptNames" -}}
{{- $names := list "kube-system" "kube-public" "kube-node-lease" .Release.Namespace }}
{{- if include "vramwarden.hasSentry" . }}
{{- $names = append $names .Values.sentry.namespace }}
{{- end }}
{{- range .Values.exemptNamespaces }}
{{- if not (contains "*" .) }}{{ $names = append $names . }}{{ end }}
{{- end }}
{{- uniq $names | toJson }}
{{- end }}

{{- define "vramwarden.namespaceSelector" }}
matchExpressions:
- key: kubernetes.io/metadata.name
  operator: NotIn
  values:
  {{- range include "vramwarden.exemptNames" . | fromJsonArray }}
  - {{ . | quote }}
  {{- end }}
- key: vramwarden.io/webhook
  operator: NotIn
  values: [disabled]
{{- end }}

{{/* A regular expression for exempt namespaces whose names have a *; empty where there is none. */}}
{{- define "vramwarden.exemptPattern" -}}
{{- $patterns := list }}
{{- range .Values.exemptNamespaces }}
{{- if contains "*" . }}{{ $patterns = append $patterns . }}{{ end }}
{{- end }}
{{- with $patterns }}{{ include "vramwarden.namespacePattern" . }}{{ end }}
{{- end }}

{{/* The matchCondition for them, of what is no pod. */}}
{{- define "vramwarden.exemptNamespaces" -}}
{{- with include "vramwarden.exemptPattern" . }}
- name: namespace-is-not-exempt
  expression: "!request.namespace.matches('{{ . }}')"
{{- end }}
{{- end }}

{{/* matchConditions of a policy that judges pods: which are nobody's business. */}}
{{- define "vramwarden.exemptions" -}}
{{ include "vramwarden.exemptNamespaces" . }}
- name: is-no-mirror-pod
  expression: "!{{ include "vramwarden.isMirrorPod" . | replace "\n" " " }}"
{{- end }}

{{/* In CEL: whether a request is about what a kubelet shows of a static pod, which runs already. The annotation
alone proves nothing: anybody can write it, so the user has to be a node. */}}
{{- define "vramwarden.isMirrorPod" -}}
(has(object.metadata.annotations) && 'kubernetes.io/config.mirror' in object.metadata.annotations
&& has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups)
{{- end }}

{{/*
Which pods are sent to us, and by which of two entries. The first, `Fail`, is for real demands: nobody
else may wait for us while no replica answers. The second, `advise`, is `Ignore` and for all else that
we judge. No pod goes to both.

What the two let through is more than `decide` in webhook/core/admission/decide.py judges, never less;
tests/chart proves it. A condition that cannot be evaluated denies the pod (`Fail`), or lets it pass us
by (`Ignore`): hence has() before every field. Webhooks have no variables, so a list of one and
`exists` stand in where something is read twice.

Every pod of the cluster pays for this. To make an object readable in CEL costs the API server more than an
expression, and it does so for each entry that rules and selectors let through (`strangers` of `make bench`).
So there are few entries, each with one expression that stops at what is most often false, and exceptions last.
*/}}

{{/* How long a list may be: `judged` is what webhook/core/pod/complexity.py lets a pod have before it is
translated, `unread` what is not gone through in CEL. */}}
{{- define "vramwarden.bounds" -}}
{{- .Files.Get "files/admission.json" }}
{{- end }}

{{/* The containers of a new pod, which has none for debugging. */}}
{{- define "vramwarden.newContainers" -}}
((has(object.spec.containers) ? object.spec.containers : [])
+ (has(object.spec.initContainers) ? object.spec.initContainers : []))
{{- end }}

{{/* In CEL: whether `all`, the containers of a pod, hold more than an expression goes through: a list of one of
them, or all of them together. The bounds of each come first, so that no loop is longer. What eight containers with
four resources each may have costs no more than the bounds of all. */}}
{{- define "vramwarden.areMany" -}}
{{- $most := (include "vramwarden.bounds" . | fromJson).unread -}}
{{- $requests := "has(container.resources) && has(container.resources.requests)" -}}
(all.size() > {{ $most.containers }} || all.exists(container, {{ include "vramwarden.isLong" . }})
|| (all.size() > 8 && (
all.map(container, has(container.env) ? container.env.size() : 0).sum() > {{ $most.allVariables }}
|| all.map(container, has(container.volumeMounts) ? container.volumeMounts.size() : 0).sum() > {{ $most.allMounts }}))
|| ((all.size() > 8 || all.exists(container, {{ $requests }} && container.resources.requests.size() > 4))
&& (all.map(container, {{ $requests }} ? container.resources.requests.size() : 0).sum() > {{ $most.allResources }}
|| [all.map(container, {{ $requests }}
? container.resources.requests.filter(name, name.contains('/') && name != 'vramwarden.io/vram') : [])].exists(names,
names.map(some, some.size()).sum() > {{ $most.domainResources }}
|| names.map(some, some.map(name, name.size()).sum()).sum() > {{ $most.domainCharacters }}))))
{{- end }}

{{/* In CEL: whether a list of `container` is longer than an expression goes through. Every limit is a request,
too: the API server sees to it. */}}
{{- define "vramwarden.isLong" -}}
{{- $most := (include "vramwarden.bounds" . | fromJson).unread -}}
(has(container.env) && container.env.size() > {{ $most.variables }})
|| (has(container.volumeMounts) && container.volumeMounts.size() > {{ $most.mounts }})
|| (has(container.resources) && has(container.resources.requests)
&& container.resources.requests.size() > {{ $most.resources }})
{{- end }}

{{/* Whether `container` is called ours, or mounts what is. */}}
{{- define "vramwarden.isNamedOurs" -}}
container.name.startsWith('vram-enforcer') || (has(container.volumeMounts)
&& container.volumeMounts.exists(mount, mount.name.startsWith('vram-enforcer') || mount.name == 'vram-gate'))
{{- end }}

{{- define "vramwarden.isDebuggerLikeOurs" -}}
({{ include "vramwarden.isNamedOurs" . }}
|| (has(container.targetContainerName) && container.targetContainerName == 'vram-enforcer'))
{{- end }}

{{/* Whether `container` names GPUs by hand: by the variable, unless its value shows none. */}}
{{- define "vramwarden.namesDevices" -}}
(has(container.env) && container.env.exists(variable, variable.name == 'NVIDIA_VISIBLE_DEVICES'
&& (has(variable.valueFrom) || (has(variable.value) && !(variable.value in ['', 'void', 'none'])))))
{{- end }}

{{/* In CEL: the keys of annotations, or what stands before their slash, by which container runtimes and their
plug-ins are asked for devices. Call with a dict of root and word: what their values name (CDI, DEVICES,
MOUNTS), or YAML, for how they are read. */}}
{{- define "vramwarden.injectors" -}}
{{- $found := list }}{{ $word := .word }}
{{- range $key, $words := (include "vramwarden.bounds" .root | fromJson).injectors }}
{{- if has $word $words }}{{ $found = append $found (squote $key) }}{{ end }}
{{- end }}
{{- printf "[%s]" (join ", " $found) }}
{{- end }}

{{/* In CEL: whether `key` is one of those, or like one. What follows the slash has at most 63 characters, so that
longer keys are not matched: on an update that would cost all that an expression may. */}}
{{- define "vramwarden.isDeviceKey" -}}
(key.size() < 128 && key.matches('{{ (include "vramwarden.bounds" . | fromJson).likeInjectors }}'))
{{- end }}

{{/* Whether a new pod bears anything of ours (a demand, our marks, the resource, or names that are reserved for
the sidecar and our volumes; of a limit alone the API server has made a request, too), or is too large to be
gone through: then its size is judged. Without a second line also GPUs named by hand. */}}
{{- define "vramwarden.isNewDemand" -}}
{{- $most := (include "vramwarden.bounds" . | fromJson).unread -}}
{{- $alone := not .Values.fence.secondLine -}}
((has(object.metadata.annotations) && (object.metadata.annotations.size() > {{ $most.entries }}
|| object.metadata.annotations.exists(key, key.startsWith('vramwarden.io/')
{{- if $alone }} || {{ include "vramwarden.isDeviceKey" . }}{{ end }})))
|| (has(object.metadata.labels) && 'vramwarden.io/managed' in object.metadata.labels)
|| (has(object.spec.volumes) && (object.spec.volumes.size() > {{ $most.volumes }}
|| object.spec.volumes.exists(volume, volume.name.startsWith('vram-enforcer') || volume.name == 'vram-gate')))
|| [{{ include "vramwarden.newContainers" . }}].exists(all, {{ include "vramwarden.areMany" . }}
|| all.exists(container, {{ include "vramwarden.isNamedOurs" . }}
|| (has(container.resources) && has(container.resources.requests)
&& 'vramwarden.io/vram' in container.resources.requests)
{{- if $alone }} || {{ include "vramwarden.namesDevices" . }}{{ end }})))
{{- end }}

{{/* What else of a new pod we judge: NVIDIA's RuntimeClass; whole GPUs, which in any policy have a domain;
mounts by which some container toolkits show GPUs; GPUs named by hand. */}}
{{- define "vramwarden.isNewAdvice" -}}
{{- $most := (include "vramwarden.bounds" . | fromJson).unread -}}
((has(object.spec.runtimeClassName) && object.spec.runtimeClassName.startsWith('nvidia'))
|| (has(object.metadata.annotations) && object.metadata.annotations.size() <= {{ $most.entries }}
&& object.metadata.annotations.exists(key, {{ include "vramwarden.isDeviceKey" . }}))
|| [{{ include "vramwarden.newContainers" . }}].exists(all, !{{ include "vramwarden.areMany" . }}
&& all.exists(container, (has(container.resources) && has(container.resources.requests)
&& container.resources.requests.exists(name, name.contains('/')))
|| (has(container.volumeMounts)
&& container.volumeMounts.exists(mount, mount.mountPath.contains('nvidia-container-devices')))
|| {{ include "vramwarden.namesDevices" . }})))
{{- end }}

{{/* Whether an update adds debugging containers, and to which entry that goes: to the first where the pod is
ours, or a container would be (which was there before is for the webhook to know), or there are too many. */}}
{{- define "vramwarden.isDebugged" -}}
(has(request.subResource) && request.subResource == 'ephemeralcontainers')
{{- end }}

{{- define "vramwarden.isDebuggedDemand" -}}
({{ include "vramwarden.isLabelled" . }}
|| (has(object.spec.ephemeralContainers) && [object.spec.ephemeralContainers].exists(all,
{{ include "vramwarden.areMany" . }} || all.exists(container, {{ include "vramwarden.isDebuggerLikeOurs" . }}
{{- if not .Values.fence.secondLine }} || {{ include "vramwarden.namesDevices" . }}{{ end }}))))
{{- end }}

{{/* Whether the pod is or was ours, by its label. */}}
{{- define "vramwarden.isLabelled" -}}
[object, oldObject].exists(pod, has(pod.metadata.labels) && 'vramwarden.io/managed' in pod.metadata.labels)
{{- end }}

{{/* Whether `key`, of an annotation, asks for something of us, says which container an amount is for, or names
the sidecar to a container runtime. */}}
{{- define "vramwarden.isOurKey" -}}
key.startsWith('vramwarden.io/') || key == 'kubectl.kubernetes.io/default-container'
|| key.endsWith('vram-enforcer')
{{- end }}

{{/* Whether an update changes keys; call with root, a field of metadata and a condition on `key`. What is
equal is not gone through, nor what is long: the webhook does that. */}}
{{- define "vramwarden.keysDiffer" -}}
{{- $most := (include "vramwarden.bounds" .root | fromJson).judged -}}
[[has(object.metadata.{{ .field }}) ? object.metadata.{{ .field }} : {},
has(oldObject.metadata.{{ .field }}) ? oldObject.metadata.{{ .field }} : {}]].exists(both,
both[0] != both[1] && both.exists(one, one.size() > {{ $most.entries }} || one.exists(key, {{ .condition }}
&& !both.all(other, key in other && other[key] == one[key]))))
{{- end }}

{{/* Whether an update changes what may never change: our keys (and the one that says which container an
amount is for, and those that ask for devices), amounts, the sidecar, the pod's own resources; or makes the pod
too large. So gates, finalizers and labels of others go on while we are away, also on a pod with a demand. Of a
pod of ours that is all at any size: what is equal is not gone through. */}}
{{- define "vramwarden.isChangedDemand" -}}
{{- $ours := "key.startsWith('vramwarden.io/')" }}
{{- $ofAnnotations := printf "(%s || %s)" (include "vramwarden.isOurKey" .) (include "vramwarden.isDeviceKey" .) }}
({{ include "vramwarden.keysDiffer" (dict "root" . "field" "annotations" "condition" $ofAnnotations) }}
|| {{ include "vramwarden.keysDiffer" (dict "root" . "field" "labels" "condition" $ours) }}
|| (object.spec != oldObject.spec && ({{ include "vramwarden.isGrown" . }}
|| [[object, oldObject].map(pod, [has(pod.spec.resources) ? pod.spec.resources : dyn({})]
+ ((has(pod.spec.containers) ? pod.spec.containers : [])
+ (has(pod.spec.initContainers) ? pod.spec.initContainers : [])).map(container,
container.name == 'vram-enforcer' ? container
: has(container.resources) && has(container.resources.limits)
&& 'vramwarden.io/vram' in container.resources.limits
? container.resources.limits['vramwarden.io/vram'] : dyn('')))].exists(views, views[0] != views[1]))))
{{- end }}

{{/* Whether an updated pod has more than may be judged of what an update can add to. */}}
{{- define "vramwarden.isGrown" -}}
{{- $most := (include "vramwarden.bounds" . | fromJson).judged -}}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" -}}
(has(object.spec.tolerations) && object.spec.tolerations.size() > {{ $most.tolerations }})
|| (has(object.spec.nodeSelector) && object.spec.nodeSelector.size() > {{ $most.entries }})
|| (has(object.spec.affinity) && [object.spec.affinity].exists(affinity,
['nodeAffinity', 'podAffinity', 'podAntiAffinity'].map(kind, !(kind in affinity) ? 0
: ['preferredDuringSchedulingIgnoredDuringExecution', '{{ $required }}'].map(list, !(list in affinity[kind]) ? 0
: (kind == 'nodeAffinity' && list == '{{ $required }}'
? affinity[kind][list].nodeSelectorTerms : affinity[kind][list]).size()).sum()).sum() > {{ $most.affinityTerms }}
|| (has(affinity.nodeAffinity) && has(affinity.nodeAffinity.{{ $required }})
&& affinity.nodeAffinity.{{ $required }}.nodeSelectorTerms.exists(term,
has(term.matchExpressions) && term.matchExpressions.size() > {{ $most.expressions }}))))
{{- end }}

{{/* What the entry that is `Fail` is sent, in the mutating phase, and in the validating one, where it sees
no pod without our label as long as the second line holds what was not translated. */}}
{{- define "vramwarden.isDemand" -}}
(oldObject == null ? {{ include "vramwarden.isNewDemand" . }} : {{ include "vramwarden.isDebuggedDemand" . }})
{{- end }}

{{- define "vramwarden.isValidatedDemand" -}}
{{- if include "vramwarden.selectsByLabel" . -}}
(oldObject == null || {{ include "vramwarden.isDebugged" . }} || {{ include "vramwarden.isChangedDemand" . }})
{{- else -}}
(oldObject == null ? {{ include "vramwarden.isNewDemand" . }} : {{ include "vramwarden.isDebugged" . }}
? {{ include "vramwarden.isDebuggedDemand" . }} : {{ include "vramwarden.isChangedDemand" . }})
{{- end }}
{{- end }}

{{/* Whether validation finds pods of ours by their label alone, which costs strangers nothing; empty for no.
It must not where translation may have been skipped and nothing else would notice. */}}
{{- define "vramwarden.selectsByLabel" -}}
{{- if and .Values.fence.secondLine (eq .Values.webhook.failurePolicy "Fail") }}true{{ end }}
{{- end }}

{{/* The other entry. A change of what is not ours matters by its annotations alone: of containers none but
an image can change. */}}
{{- define "vramwarden.isAdvice" -}}
(oldObject == null ? {{ include "vramwarden.isNewAdvice" . }} && !{{ include "vramwarden.isNewDemand" . }}
: !{{ include "vramwarden.isDebuggedDemand" . }})
{{- end }}

{{- define "vramwarden.isValidatedAdvice" -}}
{{- $keys := include "vramwarden.isDeviceKey" . }}
{{- if include "vramwarden.selectsByLabel" . }}
{{- $keys = printf "(%s || %s)" (include "vramwarden.isOurKey" .) $keys }}
{{- $differ := include "vramwarden.keysDiffer" (dict "root" . "field" "annotations" "condition" $keys) -}}
(({{ include "vramwarden.isDebugged" . }} || {{ $differ }}) && !{{ include "vramwarden.isLabelled" . }})
{{- else -}}
((oldObject == null ? {{ include "vramwarden.isNewAdvice" . }} : {{ include "vramwarden.isDebugged" . }}
|| {{ include "vramwarden.keysDiffer" (dict "root" . "field" "annotations" "condition" $keys) }})
&& !{{ include "vramwarden.isValidatedDemand" . }})
{{- end }}
{{- end }}

{{/* matchConditions of an entry for pods: one expression that ends with whom nobody asks about. */}}
{{- define "vramwarden.podConditions" -}}
- name: pod-matters
  expression: >-
    {{- include .of .root | nindent 4 }}
    && !{{ include "vramwarden.isMirrorPod" .root | nindent 4 }}
    {{- with include "vramwarden.exemptPattern" .root }}
    && !request.namespace.matches('{{ . }}')
    {{- end }}
{{- end }}

{{/* What brings a workload to the webhook that only advises: its template, or it itself, has a key of ours, a
near miss of one, or what another product reads. What a controller makes or changes nobody reads about; and a
change that leaves the spec as it is (its status, a count in an annotation) changes no pod. Lists too long to
be gone through are not. */}}
{{- define "vramwarden.templateConditions" -}}
{{ include "vramwarden.exemptNamespaces" . }}
- name: somebody-reads-it
  expression: >-
    !has(object.metadata.ownerReferences)
    && !request.userInfo.username.startsWith('system:serviceaccount:kube-system:')
    && (oldObject == null || !has(object.metadata.generation) || !has(oldObject.metadata.generation)
    || object.metadata.generation != oldObject.metadata.generation)
- name: workload-matters
  expression: >-
    [has(object.spec.jobTemplate) ? object.spec.jobTemplate.spec.template : object.spec.template].exists(pod,
    {{- include "vramwarden.isTemplateOfInterest" . | nindent 4 }})
{{- end }}

{{- define "vramwarden.isTemplateOfInterest" -}}
{{- $most := (include "vramwarden.bounds" . | fromJson).unread -}}
(!has(pod.metadata.annotations) || pod.metadata.annotations.size() <= {{ $most.entries }})
&& (!has(object.metadata.annotations) || object.metadata.annotations.size() <= {{ $most.entries }})
&& [object.metadata, pod.metadata].exists(about,
(has(about.annotations) && about.annotations.exists(key, {{ include "vramwarden.isLikeOurs" . }}))
|| (has(about.labels) && about.labels.size() <= {{ $most.entries }}
&& about.labels.exists(key, key.startsWith('vram') && key.contains('/gpu'))))
|| [(has(pod.spec.containers) ? pod.spec.containers : [])
+ (has(pod.spec.initContainers) ? pod.spec.initContainers : [])].exists(all,
all.size() <= {{ $most.containers }} && all.exists(container,
has(container.resources) && ((has(container.resources.limits)
&& container.resources.limits.size() <= {{ $most.resources }}
&& container.resources.limits.exists(key, {{ include "vramwarden.isResourceOfInterest" . }}))
|| (has(container.resources.requests) && container.resources.requests.size() <= {{ $most.resources }}
&& container.resources.requests.exists(key, {{ include "vramwarden.isResourceOfInterest" . }})))))
{{- end }}

{{/* Whether `key`, of an annotation, is ours, nearly ours, or KAI's. */}}
{{- define "vramwarden.isLikeOurs" -}}
key.startsWith('vram') || key in ['gpu-memory', 'gpu-fraction', 'gpu_memory', 'gpumemory', 'gpu-mem', 'gpumem']
{{- end }}

{{/* Whether `key`, of a resource, is ours, nearly ours, a whole GPU, in whose place a rule may give a share, or
what another product shares GPUs by. */}}
{{- define "vramwarden.isResourceOfInterest" -}}
key.startsWith('vram') || key.startsWith('nvidia.com/gpumem') || key == 'nvidia.com/gpucores'
|| key == 'nvidia.com/gpu' || key.startsWith('aliyun.com/gpu') || key.startsWith('volcano.sh/')
{{- end }}

{{/* Where clients find the webhook. */}}
{{- define "vramwarden.clientConfig" -}}
service:
  name: vramwarden-webhook
  namespace: {{ .root.Release.Namespace | quote }}
  {{- with .path }}
  path: {{ . }}
  {{- end }}
  port: 443
{{- if eq .root.Values.certificates.mode "existingSecret" }}
caBundle: {{ .root.Values.certificates.existingSecret.caBundle | required "certificates.existingSecret.caBundle: set it to the CA that signed the certificate, as PEM text" | b64enc }}
{{- end }}
{{- end }}

{{- define "vramwarden.configurationMetadata" -}}
name: {{ .Values.webhook.configurationName | quote }}
labels:
  {{- include "vramwarden.labels" . | nindent 2 }}
  app.kubernetes.io/component: webhook
{{- end }}

{{/* Whether Helm itself installs, and so can read the cluster; empty for no, as in `helm template`. Kinds that Helm
knows prove nothing: Argo CD renders with `helm template` and names them by --api-versions. */}}
{{- define "vramwarden.isLive" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" }}true{{ end }}
{{- end }}

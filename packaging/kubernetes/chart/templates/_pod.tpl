{{- define "lattice.labels" -}}
app.kubernetes.io/name: lattice
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lattice.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "lattice.pod" -}}
{{- if lt (int .Values.pods) 1 }}{{ fail (printf "pods is %v; a launch needs one or more" .Values.pods) }}{{ end -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ int64 .Values.user }}
  runAsGroup: {{ int64 .Values.user }}
  fsGroup: {{ int64 .Values.user }}
  seccompProfile: {type: RuntimeDefault}
initContainers:
  - name: lattice
    image: {{ .Values.image | quote }}
    command: [cp, /usr/bin/lattice, /usr/bin/lattice-agent, /opt/lattice/]
    securityContext:
      {{- include "lattice.confined" . | nindent 6 }}
    volumeMounts:
      - {name: programs, mountPath: /opt/lattice}
containers:
  - name: node
    image: {{ .Values.application | quote }}
    {{- if eq .Values.kind "Job" }}
    command: ["sh", "-c", "if [ $JOB_COMPLETION_INDEX != 0 ]; then exec /opt/lattice/lattice-agent listen --once --within 1800; fi; /opt/lattice/lattice-agent listen & exec /opt/lattice/lattice launch \"$@\"", "lattice"]
    args: [{{ range $at, $word := .Values.launch }}{{ if $at }}, {{ end }}{{ if kindIs "float64" $word }}{{ fail (printf "%v of launch is a number; write it in quotes" $word) }}{{ end }}{{ toString $word | quote }}{{ end }}]
    {{- else }}
    command: [/opt/lattice/lattice-agent, listen]
    readinessProbe:
      tcpSocket: {port: invitations}
    {{- end }}
    env:
      - {name: LATTICE_K8S_PODS, value: "{{ .Release.Name }}-[0-{{ sub .Values.pods 1 }}].{{ .Release.Name }}"}
    ports:
      - {name: invitations, containerPort: 50053}
    resources:
      {{- toYaml .Values.resources | nindent 6 }}
    securityContext:
      {{- include "lattice.confined" . | nindent 6 }}
    volumeMounts:
      - {name: programs, mountPath: /opt/lattice, readOnly: true}
      - {name: join, mountPath: /etc/lattice/join, readOnly: true}
      - {name: temporary, mountPath: /tmp}
      - {name: shared-memory, mountPath: /dev/shm}
volumes:
  - name: programs
    emptyDir: {}
  - name: join
    secret:
      secretName: {{ .Values.joinSecret | default (printf "%s-join" .Release.Name) }}
      defaultMode: 0440
  - name: temporary
    emptyDir: {}
  - name: shared-memory
    emptyDir: {medium: Memory, sizeLimit: {{ .Values.sharedMemory }}}
{{- end }}

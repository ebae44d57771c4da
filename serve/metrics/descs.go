package metrics

import "github.com/prometheus/client_golang/prometheus"

// descs has the descriptions of all metrics, grouped by state, services, workers and flows.
type descs struct {
	all []*prometheus.Desc

	build, started, ready, draining, applied, configRefused, configRestart *prometheus.Desc
	sourceSynced, sourceRevision, sourceObjects, problems, condition       *prometheus.Desc
	interfaceUp, queueBound, generation, objects                           *prometheus.Desc

	serviceBackends, serviceUsable, serviceFlows, servicePackets, serviceBytes          *prometheus.Desc
	serviceHandshake, serviceAnswer, serviceRepeatedSYNs, serviceRefused, serviceResets *prometheus.Desc
	backendReady, backendConnections, backendFlows, backendPackets, backendBytes        *prometheus.Desc

	received, receivedBytes, transmitted, transmittedBytes, returned, generated, held         *prometheus.Desc
	fromKernel, icmpLimited, flowsCreated, flowsRetried, batches, polls, busy, idle, pulse    *prometheus.Desc
	echoReplies, resets, resetsLimited, badChecksums, frames, umem, dropped, steering, socket *prometheus.Desc

	noLocal, proxyHeaders                                                              *prometheus.Desc
	affinityPins, affinityTentative, affinityCapacity, affinityEvicted, affinityLost   *prometheus.Desc
	startFlows, startUnread, flowLogLines                                              *prometheus.Desc
	checks, checkDifferences, seed, logDropped                                         *prometheus.Desc
	groupHasOurs, groupHasIts, groupCopies, groupLag, groupHeld, groupFlows, groupWait *prometheus.Desc
	groupSource                                                                        *prometheus.Desc
	endpointChecks, endpointChanges, endpointSuspicions, endpoints                     *prometheus.Desc

	tableCapacity, tableUsed, tableHalfOpen, tableFlows, tableEvents, tableShared *prometheus.Desc
	portsUsed, portsUnavailable                                                   *prometheus.Desc
}

func (d *descs) new(name, help string, labels ...string) *prometheus.Desc {
	return d.named("sluice_"+name, help, labels...)
}

func (d *descs) named(name, help string, labels ...string) *prometheus.Desc {
	desc := prometheus.NewDesc(name, help, labels, nil)
	d.all = append(d.all, desc)
	return desc
}

func newDescs() descs {
	d := descs{}
	d.describeState()
	d.describeServices()
	d.describeWorkers()
	d.describeFlows()
	d.describeExtras()
	return d
}

func (d *descs) describeState() {
	d.build = d.new("build_info", "Always 1; the labels say which build this is.", "version", "commit", "goversion")
	d.started = d.new("start_time_seconds", "When the daemon started, in seconds since the epoch.")
	d.ready = d.new("ready", "1 if /readyz returns 200.")
	d.draining = d.new("draining", "1 after SIGTERM.")
	d.applied = d.new("applied", "1 if everything read so far is published, steered and seen by every worker.")
	d.configRefused = d.new("config_refused",
		"1 if the configuration file is refused as it is now and the last good one stays.")
	d.configRestart = d.new("config_restart_fields", "Changes in the configuration file that wait for a restart.")
	d.sourceSynced = d.new("source_synced", "1 if all objects of a source were read once.", "source")
	d.sourceRevision = d.new("source_revision", "Revision of a source that was read, and that is applied.", "source",
		"stage")
	d.sourceObjects = d.new("source_objects", "Objects in a source.", "source")
	d.problems = d.new("problems", "Objects that are not served as they are written.", "source")
	d.condition = d.new("condition_level", "0 ok, 1 warning, 2 failure; `sluice status` has the details.", "condition")
	d.interfaceUp = d.new("interface_up", "1 if the interface can transmit.", "interface", "mode")
	d.queueBound = d.new("queue_bound", "1 if the queue's AF_XDP socket is bound.", "interface", "queue", "worker",
		"zero_copy")
	d.generation = d.new("snapshot_generation",
		"Generation of the table of services: published, steered by the kernel program, seen by the slowest worker.",
		"stage")
	d.objects = d.new("snapshot_objects", "Objects in the published table.", "kind")
}

func (d *descs) describeServices() {
	service := []string{"namespace", "service", "port", "protocol"}
	d.serviceBackends = d.new("service_backends", "Endpoints known.", service...)
	d.serviceUsable = d.new("service_backends_usable", "Endpoints that take new flows.", service...)
	d.serviceFlows = d.new("service_flows_created_total", "Flows created.", service...)
	d.servicePackets = d.new("service_packets_total", "Packets translated.", append(service, "direction")...)
	d.serviceBytes = d.new("service_bytes_total", "Bytes translated.", append(service, "direction")...)
	d.serviceHandshake = d.new("service_handshake_seconds",
		"Time from a client's first SYN to the endpoint's SYN-ACK (SCTP: INIT to INIT ACK).", service...)
	d.serviceAnswer = d.new("service_answer_seconds",
		"Time from a client's first datagram, or payload of TCP, to the endpoint's first one.", service...)
	d.serviceRepeatedSYNs = d.new("service_repeated_syns_total",
		"SYNs that clients repeated before (no) and after (yes) the endpoint had answered.",
		append(service, "answered")...)
	d.serviceRefused = d.new("service_refused_total", "Connections whose first answer was an RST.", service...)
	d.serviceResets = d.new("service_resets_total",
		"Connections that one end reset after a SYN-ACK and before either end closed them.",
		append(service, "by")...)
	d.noLocal = d.named(kubeProxyPrefix+"sync_proxy_rules_no_local_endpoints_total",
		"Service ports that drop: their traffic policy is Local and their endpoints are elsewhere.", "traffic_policy",
		"ip_family")
	backend := append(service, "backend")
	d.backendReady = d.new("backend_ready", "1 if the endpoint is ready.", backend...)
	d.backendConnections = d.new("backend_connections", "Flows that are not over.", backend...)
	d.backendFlows = d.new("backend_flows_created_total", "Flows created.", backend...)
	d.backendPackets = d.new("backend_packets_total", "Packets translated.", append(backend, "direction")...)
	d.backendBytes = d.new("backend_bytes_total", "Bytes translated.", append(backend, "direction")...)
}

func (d *descs) describeWorkers() {
	const worker = "worker"
	d.received = d.new("worker_received_packets_total", "Packets taken from links.", worker)
	d.receivedBytes = d.new("worker_received_bytes_total", "Bytes taken from links.", worker)
	d.transmitted = d.new("worker_transmitted_packets_total", "Packets given to NICs.", worker)
	d.transmittedBytes = d.new("worker_transmitted_bytes_total", "Bytes given to NICs.", worker)
	d.returned = d.new("worker_returned_packets_total", "Packets given to the kernel by the host link.", worker)
	d.generated = d.new("worker_generated_packets_total", "Packets of the gateway's own: ICMP errors, RSTs, fragments.",
		worker)
	d.held = d.new("worker_held_packets", "Packets that wait for a next hop or a first fragment.", worker)
	d.dropped = d.new("worker_dropped_packets_total", "Packets dropped, by reason.", worker, "reason")
	d.fromKernel = d.new("worker_host_link_packets_total", "Packets that came in by the host link.", worker)
	d.echoReplies = d.new("worker_echo_replies_total", "Replies to pings of VIPs; of fragmented ones, each fragment.",
		worker)
	d.proxyHeaders = d.new("worker_proxy_headers_total",
		"Segments with a PROXY header sent to backends; each repetition counts.", worker)
	d.icmpLimited = d.new("worker_icmp_limited_total", "ICMP errors that the rate limit suppressed.", worker)
	d.resets = d.new("worker_resets_total", "RSTs sent in answer to segments of unknown connections.", worker)
	d.resetsLimited = d.new("worker_resets_limited_total", "RSTs that the rate limit suppressed.", worker)
	d.badChecksums = d.new("worker_bad_checksums_total",
		"TCP segments and SCTP packets that changed no flow because of their checksum.", worker, "kind")
	d.flowsCreated = d.new("worker_flows_created_total", "Flows created.", worker)
	d.flowsRetried = d.new("worker_flows_retried_total",
		"Flows given to another backend, because theirs did not answer.", worker)
	d.batches = d.new("worker_batches_total", "Passes of the loop that moved a packet.", worker)
	d.polls = d.new("worker_polls_total", "Times the worker slept.", worker)
	d.busy = d.new("worker_busy_seconds_total", "Time spent on packets.", worker)
	d.idle = d.new("worker_idle_seconds_total", "Time asleep, naps included.", worker)
	d.pulse = d.new("worker_pulse_age_seconds", "Time since the last pass of the loop.", worker)
	d.frames = d.new("worker_frames", "Frames of the UMEM, by where they are.", worker, "place")
	d.umem = d.new("worker_umem_frames", "Frames the UMEM has.", worker)
	d.steering = d.new("steering_packets_total", "Counters of the kernel program.", "counter")
	d.socket = d.new("socket_events_total", "The kernel's counters of an AF_XDP socket (struct xdp_statistics).",
		"interface", "queue", "event")
}

func (d *descs) describeFlows() {
	d.tableCapacity = d.new("flow_table_capacity_flows", "Flows the table has room for.", "family")
	d.tableUsed = d.new("flow_table_used_flows", "Flows in the table.", "family")
	d.tableHalfOpen = d.new("flow_table_half_open_flows",
		"Flows whose client has not acknowledged the backend's answer yet.", "family")
	d.tableFlows = d.new("flow_table_flows", "Flows by state.", "family", "state")
	d.tableEvents = d.new("flow_table_events_total", "Events of flows: created.", "family", "event")
	d.tableShared = d.new("flow_table_shared_events_total",
		"Events of flows of both families, which share the half-open cap: shed, by their kind, and "+
			"refused, by why; and to sources of limits that had no room.", "event")
	d.portsUsed = d.new("source_ports_used_ratio",
		"Largest part of the source ports towards one backend that flows use.", "family", "protocol")
	d.portsUnavailable = d.new("source_ports_unavailable_ratio",
		"Largest part of the source ports towards one backend that no new flow can get.", "family", "protocol")
}

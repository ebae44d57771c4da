// Package updates measures how long a change of endpoints takes to reach packets: from the moment
// when the API server receives it to the first packet that uses it, with thousands of Services and
// a thousand changes a second.
//
//	this process                       gateway                       backend0
//	API server: Set(slice, version v) ─► sluice ─► table v
//	client0: datagrams, one flow for ──────────────► address of v ───► tap, kernel's time
//	each probed Service, continuously
//
// Each version of a probed Service's slice has one endpoint, whose address identifies the version.
// So an arriving datagram shows the version by which it was forwarded, a version that no datagram
// used counts as replaced by the first later one, and changes are sent on schedule, whether or not
// the previous one has been seen. A figure contains the wait for the next datagram; the interval
// between datagrams is reported beside it.
//
// Some of the changes are of probed Services, the others are spread over all other Services.
// Meanwhile, TCP and UDP flows of another Service run and must lose nothing.
//
// The API server is one in memory (control/k8s/k8stest), which adds little time to the daemon's, or
// a real kube-apiserver with etcd, which gives realistic figures.
package updates

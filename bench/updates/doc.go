// Package updates measures how long a change of endpoints takes to reach packets: from
// the moment the API server is given it to the first packet that uses it, with thousands
// of Services and a thousand changes a second.
//
//	this process                       gateway                       backend0
//	API server: Set(slice, version v) ─► sluice ─► table v
//	client0: datagrams, one flow for ──────────────► address of v ───► tap, kernel's time
//	each probed Service, all the time
//
// Each version of a probed Service's slice has one endpoint, whose address is the
// version. So a datagram that arrives says which version it was judged by, versions that
// were never seen alone are served by the first later one, and changes are sent on
// schedule, whether the one before has been seen or not. A figure contains the wait for
// the next datagram; how far those were apart is reported beside it.
//
// Of all changes a part are of probed Services, the others go over all the rest. Beside
// that, TCP and UDP flows of another Service run and must lose nothing.
//
// The API server is one in memory (control/k8s/k8stest), so that the daemon is measured,
// or a real kube-apiserver with etcd, so that users see what they would get.
package updates

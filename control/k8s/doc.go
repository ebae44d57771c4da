// Package k8s reads Services, EndpointSlices and the own Node from a Kubernetes API
// server, as kube-proxy reads them, and keeps reading them as they change.
//
//	API server ──list, watch──▶ Reflector ──▶ store ──▶ hold ──▶ tracker.Batch
//	            (client-go)               resource versions  (off)
//
// There is no informer cache: the Tracker keeps the fields of an object that are used, and a store
// only the version that was read. So an object is in memory once, trimmed; objects of a list are
// trimmed as they arrive.
//
// Watched objects are (k8s.io/kubernetes v1.36 cmd/kube-proxy/app/server.go, Run):
//
//	services        label !service.kubernetes.io/service-proxy-name, field spec.clusterIP!=None
//	endpointslices  label !service.kubernetes.io/headless
//	nodes           field metadata.name=<node name>; all with AllNodes
//
// and, to distinguish the end of a gateway from a rolling update (belongs.go), without the Tracker:
//
//	nodes           field metadata.name=<node name>, label kubernetes.nodeSelector
//	daemonsets      field metadata.name=<name of kubernetes.daemonSet>
//
// and, for a group of gateways whose members are Nodes (gateways.go), also without the Tracker:
//
//	nodes           all
//
// What must hold:
//   - The control loop publishes nothing before each of the three kinds has been listed once;
//     each kind is a tracker.Feed for that.
//   - A list, the first or one after a watch expired (410 Gone), is one Batch: new and changed
//     objects, and deletions of objects that it no longer has. A list with the same objects in
//     another order changes nothing.
//   - An event that is not newer than the known version of its object is ignored. A list is applied
//     regardless of its versions: an API server restored from a backup starts from older ones.
//   - While the API server does not answer nothing changes; a Problem has the time since when.
//   - A panic over one object makes that object malformed: its last good version stays.
//     One in the decoding, where there is no object yet, ends that watch, not the process.
//
// # Rights
//
// These rules are needed (rbac.authorization.k8s.io/v1 ClusterRole), the last three only where
// Events are written:
//
//	""                services        list, watch
//	discovery.k8s.io  endpointslices  list, watch
//	""                nodes           list, watch
//	events.k8s.io     events          create, patch
//	""                services        get
//	discovery.k8s.io  endpointslices  get
//
// and, where kubernetes.daemonSet is set, of a Role in its namespace:
//
//	apps              daemonsets      list, watch
//
// Get reads the UID of the object that an Event is about; without it kubectl describe does not show
// the Event. The rule for nodes may name one in resourceNames: a list or watch whose field selector
// is metadata.name=X is authorized as a request for X (k8s.io/apiserver
// pkg/endpoints/request/requestinfo.go). It helps only where each gateway has a role of its own: a
// DaemonSet's pods share one.
//
// # Size
//
// The package speaks through client-go's REST client and a scheme of four groups, not
// through the clientset, which registers every API there is: a program with nothing but
// these imports is 16 MB instead of 37 MB, its heap at start 0.4 MB instead of 1.2 MB.
package k8s

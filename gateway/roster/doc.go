// Package roster makes the list of the members of a group (config.Group) from the Nodes of their
// gateways. There is no election: each gateway reads the same Nodes.
//
//	Nodes ──► New ──► members, problems ──► file ──► members.Members
//	            ▲                            │
//	            └──── the lists in force ◄───┘
//
// A Node with the labels of group.nodes is a member once its annotation has source addresses. It
// stays a member until it is removed for good, because other gateways hold ports for it until then:
// its Node is deleted, or has the taint node.kubernetes.io/out-of-service, or has lost both labels
// and annotation, or has lost the labels and its gateway has ended. Its source addresses are no
// other gateway's, also for a later process, as long as a flow here has them.
//
// A Node that cannot be a member as it is, for example because its annotation has an address of
// another member, keeps its entry of the list in force; without one it is no member. Other Nodes do
// not wait for it. So two gateways that read Nodes in different orders may have different lists
// until such a Node is corrected. They exchange flows only as far as their lists agree
// (sources.Hash).
package roster

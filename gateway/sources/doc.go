// Package sources manages the source addresses of a group of gateways (config.Group): which address
// the new flows of this gateway use, and in which order gateways announce each address.
//
// A gateway that loses its memory does not know which ports its flows had, and other gateways still
// have copies of these flows. So it takes ports of its other source address until it has taken back
// its flows (group.Addresses). A file on a disk has the states of the addresses, and the
// incarnation, which grows with each loss of memory. A file beside the flow table has the
// incarnation to which the flow table belongs, and the addresses that its flows may have:
//
//	disk    incarnation 7, 198.51.100.1 closed, 198.51.100.2 open
//	memory  incarnation 7: the flow table is the one of this incarnation; both addresses
//
// Without the file on the disk, for example on a new gateway or after the loss of its disk, all
// addresses are closed until the gateway has taken back its flows from all others. Meanwhile its
// flows have no source address of the group, so they are not copied.
package sources

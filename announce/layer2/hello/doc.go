// Package hello has the message by which gateways on a link find each other: its fields, its
// encoding, and the keys that authenticate it. Package members has the protocol.
//
// A message is the payload of an Ethernet frame with EtherType, sent to Group. It needs no IP
// address, passes no firewall, and is not forwarded by routers: a gateway that receives it is on
// the link of the VIPs.
//
//	 0  magic "SLH1"; the last byte is the version
//	 4  flags: 1 joining, 2 goodbye, 4 returning
//	 5  bytes of the name
//	 6  part, of     8  parts of the list of VIPs
//	10  how many nonces     12  how many VIPs of this part     14  0
//	16  incarnation     24  sequence     32  version of the list     40  nonce
//	48  name, nonces of 8 bytes, VIPs: 4 or 6, and 4 or 16 bytes
//	    4 or 6: + 0x80 if leaving, + 0x40 if it would not be forwarded; both: last resort
//	 -  HMAC-SHA256 over all preceding bytes
//
// Numbers are big-endian.
package hello

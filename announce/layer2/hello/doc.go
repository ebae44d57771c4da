// Package hello has the message by which gateways of one link know of each other: its fields, its
// bytes, and the keys that prove who wrote it. What follows from it is package members.
//
// A message is the payload of an Ethernet frame of EtherType, to Group. It needs no address, no
// firewall judges it, and no router forwards it: who hears it is on the link where the VIPs are.
//
//	 0  magic "SLH1"; the last byte is the version
//	 4  flags: 1 joining, 2 goodbye, 4 returning
//	 5  bytes of the name
//	 6  part, of     8  parts of the list of VIPs
//	10  how many nonces     12  how many VIPs of this part     14  0
//	16  incarnation     24  sequence     32  version of the list     40  nonce
//	48  name, nonces of 8 bytes, VIPs: 4 or 6, and 4 or 16 bytes
//	    4 or 6: + 0x80 if leaving, + 0x40 if it would not be forwarded
//	 -  HMAC-SHA256 over all before it
//
// Numbers are big-endian.
package hello

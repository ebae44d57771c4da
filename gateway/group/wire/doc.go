// Package wire encodes the messages between the gateways of a group. Package group has the state
// machines that make and handle them.
//
// The transport delivers frames in order, or ends. A frame's first byte is its kind. Numbers are
// big-endian.
//
//	Hello       1  version u16  incarnation u64  sources u64  name
//	                                                        both directions, first frame of each
//	Records     2  seq u64  message...                      owner to member
//	Beat        3  echo i64                                 owner to member
//	Applied     4  sent i64  seq u64  remark...             member to owner
//	Mine        5  last u8  record...                       member to owner, after its Hello
//	CopyStates  6  {slot u32  state u8  notes u8}...        member to owner
//
// A message in Records is a kind and its body. The messages are numbered from seq on:
//
//	1 All   2 Set: slot u32, record   3 Clear: slot u32   4 AllDone   5 Complete
//
//	record: family u8, 4 or 6, with 16 for Proxied, 32 for HeaderAcked, 64 for Reset and 128 for
//	        ResetBy; protocol u8; state u8;
//	        ISN u32; Opening u32 with Proxied over TCP;
//	        client tuple, reply tuple: source and destination, of 4 or 16 bytes each, two u16 ports
//
//	notes:  1 Proof   2 Reset   4 ResetBy   8 Outlived   16 Asked   32 Lost   64 HeaderAcked
//
//	remark: u16 messages before seq; reason u8; age u16 if the reason is 0
//
// Each value has one encoding: a frame that is decoded and encoded again is the same bytes. A frame
// with an error in any part is refused as a whole, so that no part of it is applied.
package wire

// Package headertest builds Ethernet frames for tests, byte by byte and with full checksums, and
// verifies frames the same slow way. It shares no code with the parser and the translator, so that
// it is an independent check.
//
//	f := headertest.TCP("192.0.2.1:40000", "198.51.100.7:80", headertest.SYN)
//	f.TTL = 1
//	frame := f.Bytes()
//
// A Packet is a description; Bytes builds it. Zero fields get a sensible default, so a test sets
// only the fields that it is about.
package headertest

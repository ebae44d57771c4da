// Package probe checks endpoints: one question, and whether the answer came in time.
//
//	Start ──▶ tcp.go ──▶ tls.go, http.go, grpc.go    a goroutine each, once connected
//	      └─▶ udp.go, dns.go                         a goroutine each
//
// tcp.go connects by non-blocking sockets and one epoll, for tens of thousands of endpoints.
// conn.go bounds the bytes that an endpoint can make a check read, because the endpoint and the
// author of the Service may be hostile.
//
// The kernel sends the packets, from the address and by the route that it chooses, so on the same
// interface and to the same neighbour as clients' packets to this endpoint. There are three
// differences: no worker rewrites them, their source port is of the host's ephemeral range, and if
// clients keep their addresses, the source is the gateway's own instead.
//
// # Loss
//
// A check must not fail because a packet is lost: with 10 % lost each way, one of five handshakes
// would, as the kernel repeats a SYN after a second. So a check has attempts (of connections, or of
// datagrams) at each quarter of its timeout while none is answered, and the first answer counts.
// With 10 % lost each way a check then fails once in 770 times, and three in a row once in 450
// million. A refusal is an answer. A check of another kind goes on with the first connection, where
// the kernel retransmits after some 200 ms.
package probe

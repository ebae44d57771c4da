// Package probe checks endpoints: one question, and whether the answer came in time.
//
//	Start ──▶ tcp.go ──▶ tls.go, http.go, grpc.go    a goroutine each, once connected
//	      └─▶ udp.go, dns.go                         a goroutine each
//
// tcp.go connects by non-blocking sockets and one epoll, for tens of thousands of endpoints. What
// an endpoint can make a check read has the bounds of conn.go: the endpoint, and who writes the
// Service, may be hostile.
//
// The kernel sends the packets, from the address and by the route that it chooses, so by the
// interface and the neighbour that packets of clients to this endpoint take. What differs: they are
// not rewritten by a worker, their source port is of the host's ephemeral range, and a client whose
// address is kept is another source than the gateway.
//
// # Loss
//
// A check must not fail because a packet is lost: with 10 % lost each way, one of five handshakes
// would, as the kernel repeats a SYN after a second. So a check has attempts (of connections, or of
// datagrams) at each quarter of its timeout while none is answered, and the first answer counts.
// With 10 % lost each way a check then fails once in 770 times, and three in a row once in 450
// million. A refusal is an answer. A check of another kind goes on with the first connection, where
// the kernel repeats what is lost after some 200 ms.
package probe

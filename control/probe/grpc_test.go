package probe

import (
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// TestGRPC asks the server and the health service of grpc-go.
func TestGRPC(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, service := grpc.NewServer(), health.NewServer()
	grpc_health_v1.RegisterHealthServer(server, service)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	service.SetServingStatus("shop.Cart", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	bare, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	without := grpc.NewServer() // has no health service
	go func() { _ = without.Serve(bare) }()
	defer without.Stop()

	p := newProber(t, nil)
	to := l.Addr().String()
	expect(t, check(t, p, to, "grpc"), true, "SERVING")
	expect(t, check(t, p, to, "grpc service=shop.Cart"), false, "NOT_SERVING")
	expect(t, check(t, p, to, "grpc service=shop.Other"), false, "grpc status 5") // NOT_FOUND
	service.SetServingStatus("shop.Cart", grpc_health_v1.HealthCheckResponse_SERVING)
	expect(t, check(t, p, to, "grpc service=shop.Cart"), true, "SERVING")
	expect(t, check(t, p, bare.Addr().String(), "grpc"), false, "grpc status 12") // UNIMPLEMENTED
	expect(t, check(t, p, closedPort(t, "tcp"), "grpc"), false, "refused")
	silent, _ := silentPort(t)
	expect(t, check(t, p, silent, "grpc timeout=300ms"), false, "no answer in 300ms")
}

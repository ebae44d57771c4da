package upstream

import (
	"errors"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
)

// domain is that of the cluster, as kubelets write it into /etc/resolv.conf of pods.
const domain = "cluster.local"

// ttlSeconds is short, because Services come and go within a case.
const ttlSeconds = 1

// Names answers for the names of Services, as the cluster's DNS does, for the queries of the cases
// (github.com/kubernetes/dns, docs/specification.md): SERVICE.NAMESPACE.svc.DOMAIN has the
// ClusterIPs of the Service, or the name that an ExternalName Service says. It knows no headless
// Services, no SRV and no PTR records, and no names of others.
type Names struct {
	watch *Watch
	conns []net.PacketConn
}

// Names makes a server of names; Serve says where.
func (w *Watch) Names() *Names { return &Names{watch: w} }

// Serve answers what arrives at a socket until it is closed; Close does so.
func (n *Names) Serve(c net.PacketConn) {
	n.conns = append(n.conns, c)
	go func() {
		question := make([]byte, 512) // RFC 1035, section 4.2.1: what UDP carries
		for {
			size, from, err := c.ReadFrom(question)
			if err != nil {
				return // it is closed
			}
			if answer, err := n.answer(question[:size]); err == nil {
				_, _ = c.WriteTo(answer, from) // a client without an answer asks again
			}
		}
	}()
}

// Close closes the sockets.
func (n *Names) Close() error {
	var errs []error
	for _, c := range n.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// answer is the message that answers a question.
func (n *Names) answer(message []byte) ([]byte, error) {
	var p dnsmessage.Parser
	header, err := p.Start(message)
	if err != nil {
		return nil, err
	}
	if header.Response {
		return nil, errors.New("an answer, and no question")
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	records, found := n.records(q)
	header.Response, header.Authoritative, header.RecursionAvailable = true, true, true
	header.RCode = dnsmessage.RCodeSuccess
	if !found {
		header.RCode = dnsmessage.RCodeNameError
	}
	b := dnsmessage.NewBuilder(nil, header)
	b.EnableCompression()
	if err := errors.Join(b.StartQuestions(), b.Question(q), b.StartAnswers()); err != nil {
		return nil, err
	}
	for _, r := range records {
		if err := r(&b); err != nil {
			return nil, err
		}
	}
	return b.Finish()
}

// record writes itself.
type record func(*dnsmessage.Builder) error

// records are the answers to a question, and whether there is such a name, of any type.
func (n *Names) records(q dnsmessage.Question) (records []record, found bool) {
	name := q.Name
	for range 8 { // ExternalName Services may name each other, and in a circle
		s := n.service(name.String())
		if s == nil {
			// A Service names a name outside of the cluster: the client gets its CNAME.
			return records, len(records) > 0
		}
		header := dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: ttlSeconds}
		if s.Spec.Type != corev1.ServiceTypeExternalName {
			return append(records, addresses(header, q.Type, s.Spec.ClusterIPs)...), true
		}
		target, err := dnsmessage.NewName(strings.TrimSuffix(s.Spec.ExternalName, ".") + ".")
		if err != nil {
			return records, true
		}
		records = append(records, func(b *dnsmessage.Builder) error {
			return b.CNAMEResource(header, dnsmessage.CNAMEResource{CNAME: target})
		})
		name = target
	}
	return records, true
}

// addresses are the records of one type.
func addresses(header dnsmessage.ResourceHeader, t dnsmessage.Type, ips []string) (records []record) {
	for _, ip := range ips {
		a, err := netip.ParseAddr(ip)
		switch {
		case err != nil: // None: headless
		case a.Is4() && t == dnsmessage.TypeA:
			records = append(records, func(b *dnsmessage.Builder) error {
				return b.AResource(header, dnsmessage.AResource{A: a.As4()})
			})
		case a.Is6() && t == dnsmessage.TypeAAAA:
			records = append(records, func(b *dnsmessage.Builder) error {
				return b.AAAAResource(header, dnsmessage.AAAAResource{AAAA: a.As16()})
			})
		}
	}
	return records
}

// service is who has a name; nil if nobody has.
func (n *Names) service(name string) *corev1.Service {
	host, ok := strings.CutSuffix(strings.ToLower(name), ".svc."+domain+".")
	if !ok {
		return nil
	}
	service, namespace, ok := strings.Cut(host, ".")
	if !ok || strings.Contains(namespace, ".") {
		return nil
	}
	o, exists, err := n.watch.services.GetByKey(namespace + "/" + service)
	if err != nil || !exists {
		return nil
	}
	return o.(*corev1.Service)
}

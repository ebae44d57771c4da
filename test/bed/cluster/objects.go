package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Object is what Put and Delete take: *corev1.Service, *corev1.Node or
// *discoveryv1.EndpointSlice. Services and slices without a namespace are in "default".
type Object = metav1.Object

// writers bounds how many objects are written at the same time: enough to keep an API
// server of two processors busy.
const writers = 8

// Put creates or updates objects, and writes the status of Services and Nodes
// too. Namespaces are made as needed. An update keeps the values that the API server allocated
// (cluster IPs, node ports) where its own fields are empty. The objects are not changed; the
// objects of one call are written in any order.
func (c *Cluster) Put(ctx context.Context, objects ...Object) error {
	return c.each(ctx, "put", objects, c.put)
}

// Delete deletes objects, of which only name and namespace matter. One that does not
// exist is as good as deleted.
func (c *Cluster) Delete(ctx context.Context, objects ...Object) error {
	return c.each(ctx, "delete", objects, c.delete)
}

// Reset deletes all Services but "kubernetes", which the API server would make again,
// all EndpointSlices and all Nodes.
func (c *Cluster) Reset(ctx context.Context) error {
	services, err := c.client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("cluster: reset: %w", err)
	}
	slices, err := c.client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("cluster: reset: %w", err)
	}
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("cluster: reset: %w", err)
	}
	var all []Object
	for i := range services.Items {
		if s := &services.Items[i]; s.Namespace != metav1.NamespaceDefault || s.Name != "kubernetes" {
			all = append(all, s)
		}
	}
	for i := range slices.Items {
		all = append(all, &slices.Items[i])
	}
	for i := range nodes.Items {
		all = append(all, &nodes.Items[i])
	}
	return c.Delete(ctx, all...)
}

// each calls f for all objects and joins what went wrong, with the objects' names.
func (c *Cluster) each(
	ctx context.Context, verb string, objects []Object, f func(context.Context, Object) error,
) error {
	errs := make([]error, len(objects))
	next := make(chan int)
	var done sync.WaitGroup
	for range min(writers, len(objects)) {
		done.Go(func() {
			for i := range next {
				if err := f(ctx, objects[i]); err != nil {
					errs[i] = fmt.Errorf("cluster: %s %T %s/%s: %w", verb, objects[i], objects[i].GetNamespace(),
						objects[i].GetName(), err)
				}
			}
		})
	}
	for i := range objects {
		next <- i
	}
	close(next)
	done.Wait()
	return errors.Join(errs...)
}

func namespaceOf(o Object) string {
	if ns := o.GetNamespace(); ns != "" {
		return ns
	}
	return metav1.NamespaceDefault
}

// put writes an object, once more if the API server had no time for it: on an emulated processor
// its limit of 34 s for one request is soon over. Writing the same object twice changes nothing.
func (c *Cluster) put(ctx context.Context, o Object) error {
	err := c.putInNamespace(ctx, o)
	for range overtimes {
		if !apierrors.IsTimeout(err) {
			break
		}
		err = c.putInNamespace(ctx, o)
	}
	return err
}

// overtimes is how often the API server may have no time for one object.
const overtimes = 10

func (c *Cluster) putInNamespace(ctx context.Context, o Object) error {
	err := c.putOnce(ctx, o)
	if apierrors.IsNotFound(err) && namespaceOf(o) != metav1.NamespaceDefault {
		if err := c.ensureNamespace(ctx, o.GetNamespace()); err != nil {
			return err
		}
		err = c.putOnce(ctx, o)
	}
	return err
}

func (c *Cluster) putOnce(ctx context.Context, o Object) error {
	switch o := o.(type) {
	case *corev1.Service:
		return c.putService(ctx, o)
	case *corev1.Node:
		return c.putNode(ctx, o)
	case *discoveryv1.EndpointSlice:
		_, err := write(ctx, c.client.DiscoveryV1().EndpointSlices(namespaceOf(o)), o)
		return err
	}
	return fmt.Errorf("kind %T is not one of Service, Node, EndpointSlice", o)
}

func (c *Cluster) putService(ctx context.Context, want *corev1.Service) error {
	services := c.client.CoreV1().Services(namespaceOf(want))
	got, err := write(ctx, services, want)
	if err != nil {
		return err
	}
	got.Status = *want.Status.DeepCopy()
	_, err = services.UpdateStatus(ctx, got, metav1.UpdateOptions{})
	return err
}

func (c *Cluster) putNode(ctx context.Context, want *corev1.Node) error {
	nodes := c.client.CoreV1().Nodes()
	got, err := write(ctx, nodes, want)
	if err != nil {
		return err
	}
	got.Status = *want.Status.DeepCopy()
	_, err = nodes.UpdateStatus(ctx, got, metav1.UpdateOptions{})
	return err
}

// writer is the part of a typed client that write needs.
type writer[T any] interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
}

// write creates an object, or updates it regardless of its version. It gets a copy, because
// a version that the caller's object may have is of an earlier state.
func write[T interface {
	metav1.Object
	DeepCopy() T
}](ctx context.Context, w writer[T], o T) (T, error) {
	next := o.DeepCopy()
	next.SetResourceVersion("")
	got, err := w.Create(ctx, next, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return w.Update(ctx, next, metav1.UpdateOptions{})
	case apierrors.IsInvalid(err):
		// Perhaps because of itself: addresses and node ports are claimed before it is
		// found that the name exists.
		if got, err := w.Update(ctx, next, metav1.UpdateOptions{}); err == nil {
			return got, nil
		}
	}
	return got, err
}

func (c *Cluster) delete(ctx context.Context, o Object) error {
	var err error
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	switch o := o.(type) {
	case *corev1.Service:
		err = c.client.CoreV1().Services(namespaceOf(o)).Delete(ctx, o.Name, now)
	case *corev1.Node:
		err = c.client.CoreV1().Nodes().Delete(ctx, o.Name, now)
	case *discoveryv1.EndpointSlice:
		err = c.client.DiscoveryV1().EndpointSlices(namespaceOf(o)).Delete(ctx, o.Name, now)
	default:
		err = fmt.Errorf("kind %T is not one of Service, Node, EndpointSlice", o)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *Cluster) ensureNamespace(ctx context.Context, name string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := c.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("namespace %s: %w", name, err)
	}
	return nil
}

// NewNode makes a Node with a zone label (none if empty) and internal addresses, of
// which kube-proxy takes the first of each family. It is for Put.
func NewNode(name, zone string, addresses ...netip.Addr) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{corev1.LabelHostname: name},
	}}
	if zone != "" {
		n.Labels[corev1.LabelTopologyZone] = zone
	}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP,
			Address: a.String()})
	}
	return n
}

// NewService makes a Service over IPv4. With VIPs it is of type LoadBalancer, without node ports,
// of which a cluster has too few for thousands of Services. It is for Put.
func NewService(namespace, name string, ports []corev1.ServicePort, vips ...netip.Addr) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: ports},
	}
	for _, a := range vips {
		s.Spec.Type, s.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer, new(bool)
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: a.String()})
	}
	return s
}

// SetClusterIP gives a Service of NewService its cluster IP, where no API server does.
func SetClusterIP(s *corev1.Service, ip netip.Addr) {
	s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = ip.String(), []string{ip.String()},
		[]corev1.IPFamily{corev1.IPv4Protocol}
}

// Numbered addresses of many Services: each of some four million numbers has a cluster IP, a VIP of
// the shared address space (RFC 6598), and an endpoint that nobody sends to.
func NumberedClusterIP(n int) netip.Addr { return numbered(10, 96, n+1<<8) }
func NumberedVIP(n int) netip.Addr       { return numbered(100, 64, n) }
func NumberedEndpoint(n int) netip.Addr  { return numbered(10, 128, n) }

func numbered(a, b byte, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{a, b + byte(n>>16), byte(n >> 8), byte(n)})
}

// NewSlice makes an EndpointSlice of a Service, named after it and the suffix, with all
// ports of the Service, each under its name and with its target's number. A target that
// is a name gets the Service port's own number. It is for Put.
func NewSlice(
	service *corev1.Service, suffix string, family corev1.IPFamily, endpoints ...discoveryv1.Endpoint,
) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: service.Name + "-" + suffix, Namespace: namespaceOf(service), Labels: maps.Clone(service.Labels),
		},
		AddressType: discoveryv1.AddressType(family),
		Endpoints:   endpoints,
	}
	metav1.SetMetaDataLabel(&s.ObjectMeta, discoveryv1.LabelServiceName, service.Name)
	for i := range service.Spec.Ports {
		p := &service.Spec.Ports[i]
		name, number := p.Name, p.TargetPort.IntVal
		if number == 0 {
			number = p.Port // the API server's default for an absent target
		}
		protocol := p.Protocol
		if protocol == "" {
			protocol = corev1.ProtocolTCP
		}
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &number, Protocol: &protocol})
	}
	return s
}

// NewEndpoint makes an endpoint that is ready, on a node. It is for NewSlice.
func NewEndpoint(node string, address netip.Addr) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{address.String()}}
	if node != "" {
		e.NodeName = &node
	}
	yes, no := true, false
	e.Conditions = discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no}
	return e
}

package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"
)

// labelOwner marks a container with the process that will remove it.
const labelOwner = "validator-gw.testenv"

// The bounds of the Docker route. Past them the next route is taken.
const (
	pingTimeout  = 5 * time.Second
	pullTimeout  = 3 * time.Minute
	pullSilence  = 20 * time.Second
	bootTimeout  = 60 * time.Second
	startRetries = 3
)

// dockerServer is a server in a container.
type dockerServer struct {
	service  service
	pool     *dockertest.Pool
	resource *dockertest.Resource
	address  string
}

// startDocker runs the service's image. It gives up within the bounds above when the engine hangs.
func startDocker(s service) (server, string, error) {
	pool, err := dockertest.NewPool("")
	if err != nil {
		return nil, "", fmt.Errorf("no engine: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()
	if err := pool.Client.PingWithContext(ctx); err != nil {
		return nil, "", fmt.Errorf("no engine answers: %w", err)
	}
	sweepContainers(pool)

	type result struct {
		server *dockerServer
		err    error
	}
	done := make(chan result, 1) // the engine's calls take no context
	go func() {
		srv, err := runContainer(pool, s)
		done <- result{srv, err}
	}()
	limit := time.NewTimer(pullTimeout + bootTimeout + pingTimeout)
	defer limit.Stop()
	select {
	case r := <-done:
		if r.err != nil {
			removeOwn(pool)
			return nil, "", r.err
		}
		return r.server, "docker, image " + s.image(), nil
	case <-limit.C:
		removeOwn(pool)
		return nil, "", errors.New("the engine does not get it done")
	}
}

func runContainer(pool *dockertest.Pool, s service) (*dockerServer, error) {
	if err := haveImage(pool, s); err != nil {
		return nil, err
	}
	password := randomName()
	var resource *dockertest.Resource
	for try := 1; ; try++ {
		// A port that the engine picks would be another one after a restart, so we pick it. Somebody else may
		// take it in between, hence the tries.
		host, port, err := freePort()
		if err != nil {
			return nil, err
		}
		resource, err = pool.RunWithOptions(&dockertest.RunOptions{
			Repository: s.repo, Tag: s.tag,
			Env: s.containerEnv(password), Cmd: s.containerCmd,
			Labels:       map[string]string{labelOwner: ownerID()},
			PortBindings: map[docker.Port][]docker.PortBinding{docker.Port(s.port): {{HostIP: host, HostPort: port}}},
		}, func(h *docker.HostConfig) { h.PublishAllPorts = false })
		if err == nil {
			break
		}
		if try == startRetries {
			return nil, fmt.Errorf("run %s: %w", s.image(), err)
		}
	}
	srv := &dockerServer{service: s, pool: pool, resource: resource}
	srv.address = s.url(resource.GetHostPort(s.port), password)
	return srv, srv.ready()
}

// haveImage takes the image that is there, and else tries to get it for a bounded time.
func haveImage(pool *dockertest.Pool, s service) error {
	if _, err := pool.Client.InspectImage(s.image()); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), pullTimeout)
	defer cancel()
	err := pool.Client.PullImage(docker.PullImageOptions{
		Repository: s.repo, Tag: s.tag, Context: ctx, InactivityTimeout: pullSilence,
	}, docker.AuthConfiguration{})
	if err != nil {
		return fmt.Errorf("the engine has no image %s and can't get it: %w", s.image(), err)
	}
	return nil
}

func (d *dockerServer) url() string { return d.address }

// ready waits until the server answers through its published port.
func (d *dockerServer) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), bootTimeout)
	defer cancel()
	return waitReady(ctx, d.service, d.address, func() error {
		c, err := d.pool.Client.InspectContainer(d.resource.Container.ID)
		if err != nil {
			return fmt.Errorf("inspect the container: %w", err)
		}
		if c.State.Running {
			return nil
		}
		var log bytes.Buffer
		_ = d.pool.Client.Logs(docker.LogsOptions{ // the log only explains the error below
			Context: ctx, Container: c.ID, OutputStream: &log, ErrorStream: &log, Stdout: true, Stderr: true, Tail: "20",
		})
		return fmt.Errorf("the container ended with code %d: %s", c.State.ExitCode, tail(log.Bytes()))
	})
}

func (d *dockerServer) pause() error  { return d.pool.Client.PauseContainer(d.resource.Container.ID) }
func (d *dockerServer) resume() error { return d.pool.Client.UnpauseContainer(d.resource.Container.ID) }

func (d *dockerServer) kill() error {
	_ = d.resume() // an engine does not kill what is frozen; an error means that it was not
	return d.pool.Client.KillContainer(docker.KillContainerOptions{
		ID: d.resource.Container.ID, Signal: docker.SIGKILL,
	})
}

func (d *dockerServer) start() error {
	if err := d.pool.Client.StartContainer(d.resource.Container.ID, nil); err != nil {
		return err
	}
	return d.ready()
}

func (d *dockerServer) remove() { removeOwn(d.pool) }

// removeOwn removes every container of this process, also one whose start was given up.
func removeOwn(pool *dockertest.Pool) {
	removeContainers(pool, func(owner string) bool { return owner == ownerID() })
}

// sweepContainers removes what processes of this host left behind that are gone, as after kill -9 of a keeper.
func sweepContainers(pool *dockertest.Pool) { removeContainers(pool, ownerGone) }

func removeContainers(pool *dockertest.Pool, which func(owner string) bool) {
	list, err := pool.Client.ListContainers(docker.ListContainersOptions{
		All: true, Filters: map[string][]string{"label": {labelOwner}},
	})
	if err != nil {
		return // the next run sweeps again
	}
	for _, c := range list {
		if which(c.Labels[labelOwner]) {
			_ = pool.Client.UnpauseContainer(c.ID)
			_ = pool.Client.RemoveContainer(docker.RemoveContainerOptions{ID: c.ID, Force: true, RemoveVolumes: true})
		}
	}
}

// freePort is an interface and a port on it that nobody listens on now. An engine elsewhere has to publish on
// all its interfaces, and its ports can only be guessed.
func freePort() (host, port string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	if _, port, err = net.SplitHostPort(l.Addr().String()); err != nil {
		return "", "", fmt.Errorf("find a free port: %w", err)
	}
	host = "127.0.0.1"
	if h := os.Getenv("DOCKER_HOST"); h != "" && !strings.HasPrefix(h, "unix:") {
		host = ""
	}
	return host, port, nil
}

package plugin

import (
	"context"
	"errors"
	"flag"
	"log"
	"os/signal"
	"syscall"
)

// Main runs the plugin as its command line says, until SIGTERM or SIGINT.
func (p *Plugin) Main() {
	var servers []string
	flag.Func("connect", "`HOST:PORT` of an evald server to dial out to; may be given for each of several", func(server string) error {
		servers = append(servers, server)
		return nil
	})
	listen := flag.String("listen", "127.0.0.1:50061", "`HOST:PORT` to listen on; port 0 picks a free port")
	register := flag.String("register", "", "`HOST:PORT` of an evald server to register at, when listening")
	target := flag.String("target", "", "`TARGET` under which that server reaches this plugin, when not the address itself")
	profile := flag.String("tls-profile", "", "`NAME` of that server's TLS profile for this plugin, when it listens with TLS")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var err error
	if len(servers) > 0 {
		err = p.Connect(ctx, servers...)
	} else {
		err = p.Listen(ctx, *listen, Registration{*register, *target, *profile})
	}
	if errors.Is(err, ErrRevoked) {
		log.Print(err) // no failure: whoever starts failed programs again should not start this one
	} else if err != nil {
		log.Fatal(err)
	}
}

//! What runs in one round, and how each fault is done to it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use quota_client::clock;
use quota_core::policy::PolicySpec;
use rustix::process::Signal;
use simulations::random::Random;

use super::clocks::{Clocks, Machine};
use super::faults::{Fault, Meanwhile, Trouble};
use super::moment::pass;
use super::proxy::{Cut, Proxy};
use super::tally::Tally;
use crate::binaries::binaries;
use crate::cluster::{self, Gateway, Server};
use crate::load::Load;
use crate::process::Process;

/// How long a process may take to start or stop on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(60);
/// How long a kill waits for a write. Without one, the kill comes all the same.
const WRITE_WITHIN: Duration = Duration::from_millis(1500);

/// A gateway, with its proxy, its loads and the logs of all that were in its place.
#[derive(Debug)]
pub(super) struct Place {
    gateway: Option<Gateway>,
    pub(super) proxy: Proxy,
    pub(super) loads: Vec<Load>,
    /// Each life's admission log, and the machine whose clock it shows.
    pub(super) logs: Vec<(PathBuf, Machine)>,
}

/// Everything that runs in one round.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) directory: PathBuf,
    pub(super) places: Vec<Place>,
    pub(super) tally: Tally,
    /// When the server was killed, on this machine's clock.
    pub(super) kills: Vec<quota_core::time::Timestamp>,
    server: Option<Server>,
    machine: Machine,
    clocks: Clocks,
    random: Random,
    starts: u32,
    events: String,
}

impl Scene {
    /// Starts a server with these policies, and gateways.
    pub(super) async fn start(
        directory: &Path,
        clocks: Clocks,
        mut random: Random,
        policies: &[PolicySpec],
        gateways: usize,
    ) -> anyhow::Result<Self> {
        let machine = clocks.machine(&mut random);
        let mut scene = Self {
            directory: directory.to_owned(),
            places: Vec::new(),
            tally: Tally::default(),
            kills: Vec::new(),
            server: None,
            machine,
            clocks,
            random,
            starts: 0,
            events: String::new(),
        };
        scene.start_server().await?;
        let server = scene.server.as_ref().context("it was just started")?;
        for policy in policies {
            server.put_policy(policy).await?;
        }
        for which in 0..gateways {
            let proxy = Proxy::start().await?;
            proxy.lead_to(Some(scene.server()?.grpc));
            scene.places.push(Place {
                gateway: None,
                proxy,
                loads: Vec::new(),
                logs: Vec::new(),
            });
            scene.start_gateway(which).await?;
        }
        Ok(scene)
    }

    /// The server, which runs.
    pub(super) fn server(&self) -> anyhow::Result<&Server> {
        self.server.as_ref().context("no server runs")
    }

    /// Where a gateway serves.
    pub(super) fn address(&self, which: usize) -> anyhow::Result<std::net::SocketAddr> {
        let gateway = self.places[which].gateway.as_ref();
        Ok(gateway.context("no gateway runs")?.address)
    }

    /// Does one fault, and returns when the server and all gateways run again.
    pub(super) async fn suffer(&mut self, fault: &Fault) -> anyhow::Result<()> {
        self.note(format!("{fault:?}"));
        self.tally.fault(fault.name());
        match *fault {
            Fault::KillServer { down } => {
                self.kill_server()?;
                pass(down).await;
                self.start_server().await
            }
            Fault::KillServerAtWrite { down } => {
                if self.written().await {
                    self.tally.kills_at_writes += 1;
                }
                self.kill_server()?;
                pass(down).await;
                self.start_server().await
            }
            Fault::KillServerTwice { between } => {
                self.kill_server()?;
                let starting = self.spawn_server()?;
                pass(between).await;
                self.killed_server(starting)?;
                self.start_server().await
            }
            Fault::StopServer { patience } => self.stop_server(patience).await,
            Fault::Reboot { down } => {
                self.kill_server()?;
                pass(down).await;
                let after = self
                    .clocks
                    .reboot(&self.machine, &self.directory, &mut self.random);
                self.machine = after?;
                self.start_server().await
            }
            Fault::SecondServer => self.second_server().await,
            Fault::KillGateway { which } => {
                let gateway = self.places[which].gateway.take().context("it runs")?;
                gateway.process.kill()?;
                self.tally.gateway_kills += 1;
                self.start_gateway(which).await
            }
            Fault::StopGateway { which } => {
                self.stop_gateway(which).await?;
                self.start_gateway(which).await
            }
            Fault::PauseServer { lasting, meanwhile } => {
                self.tally.pauses += 1;
                let process = &mut self.server.as_mut().context("it runs")?.process;
                process.signal(Signal::STOP)?;
                pass(lasting / 2).await;
                let killed = self.meanwhile(meanwhile, lasting)?;
                pass(lasting / 2).await;
                if killed {
                    return self.start_server().await;
                }
                let process = &mut self.server.as_mut().context("it runs")?.process;
                process.signal(Signal::CONT)
            }
            Fault::PauseGateway {
                which,
                lasting,
                meanwhile,
            } => {
                self.tally.pauses += 1;
                self.signal_gateway(which, Signal::STOP)?;
                pass(lasting / 2).await;
                let killed = self.meanwhile(meanwhile, lasting)?;
                pass(lasting / 2).await;
                if killed {
                    self.start_server().await?;
                }
                self.signal_gateway(which, Signal::CONT)
            }
            Fault::Network { which, trouble } => {
                self.trouble(which, trouble).await;
                Ok(())
            }
        }
    }

    /// Stops everything in order, gateways first.
    pub(super) async fn stop(&mut self) -> anyhow::Result<()> {
        for which in 0..self.places.len() {
            self.stop_gateway(which).await?;
        }
        let server = self.server.take().context("it runs")?;
        let status = server.process.stop().await?;
        ensure!(status.success(), "the server stops with {status}");
        for place in &self.places {
            let (replays, answered) = place.proxy.replays();
            self.tally.replays += replays;
            self.tally.replays_answered += answered;
        }
        Ok(())
    }

    /// Writes down what happened, with this machine's CLOCK_BOOTTIME in nanoseconds.
    pub(super) fn note(&mut self, what: impl std::fmt::Display) {
        self.events += &format!("{}\t{what}\n", clock::now().as_nanos());
        // Written each time, so that it is there if the round never ends.
        let _ = std::fs::write(self.directory.join("events"), &self.events);
    }

    /// Does what comes at half time. Returns whether the server is gone.
    fn meanwhile(&mut self, meanwhile: Meanwhile, lasting: Duration) -> anyhow::Result<bool> {
        match meanwhile {
            Meanwhile::Nothing => {}
            Meanwhile::Cut => {
                for place in &self.places {
                    self.tally.cuts += place.proxy.cut(Cut::Both);
                }
            }
            Meanwhile::Mirror => {
                for place in &self.places {
                    place.proxy.replay(true, lasting * 2);
                }
            }
            Meanwhile::KillServer => {
                self.kill_server()?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn trouble(&mut self, which: Option<usize>, trouble: Trouble) {
        let all = 0..self.places.len();
        let hit: Vec<&Proxy> = all
            .filter(|place| which.is_none_or(|which| which == *place))
            .map(|place| &self.places[place].proxy)
            .collect();
        let cut = |how| hit.iter().map(|proxy| proxy.cut(how)).sum::<u64>();
        // The next fault may come while bad weather or a replay lasts.
        match trouble {
            Trouble::Cut => self.tally.cuts += cut(Cut::Both),
            Trouble::CutClient { lives } => self.tally.cuts += cut(Cut::Client(lives)),
            Trouble::CutServer { lives } => self.tally.cuts += cut(Cut::Server(lives)),
            Trouble::Delay {
                there,
                back,
                lasting,
            } => {
                for proxy in hit {
                    proxy.spell(lasting, move |weather| weather.delay = [there, back]);
                }
            }
            Trouble::Hold {
                there,
                back,
                lasting,
            } => {
                for proxy in hit {
                    proxy.spell(lasting, move |weather| weather.held = [there, back]);
                }
            }
            Trouble::Crumbs { lasting } => {
                for proxy in hit {
                    proxy.spell(lasting, |weather| weather.crumbs = true);
                }
            }
            Trouble::Mirror { lasting } => hit.iter().for_each(|p| p.replay(true, lasting)),
            Trouble::Echo { lasting } => hit.iter().for_each(|p| p.replay(false, lasting)),
        }
    }

    fn lead_to(&self, target: Option<std::net::SocketAddr>) {
        for place in &self.places {
            place.proxy.lead_to(target);
        }
    }

    fn kill_server(&mut self) -> anyhow::Result<()> {
        self.lead_to(None);
        let server = self.server.take().context("a server runs")?;
        self.killed_server(server.process)
    }

    fn killed_server(&mut self, process: Process) -> anyhow::Result<()> {
        process.kill()?;
        self.kills.push(clock::now());
        self.tally.server_kills += 1;
        self.note("the server is killed");
        Ok(())
    }

    /// SIGTERM, and a kill if it takes longer than `patience`.
    async fn stop_server(&mut self, patience: Option<Duration>) -> anyhow::Result<()> {
        self.lead_to(None);
        let Server { mut process, .. } = self.server.take().context("a server runs")?;
        let Some(patience) = patience else {
            let status = process.stop().await?;
            ensure!(status.success(), "the server stops with {status}");
            return self.start_server().await;
        };
        process.signal(Signal::TERM)?;
        pass(patience).await;
        if process.is_running() {
            self.killed_server(process)?;
        } else {
            let status = process.end(START_WITHIN).await?;
            ensure!(status.success(), "the server stops with {status}");
        }
        self.start_server().await
    }

    async fn second_server(&mut self) -> anyhow::Result<()> {
        let second = self.spawn_server()?;
        let serves = second.line("where it serves", START_WITHIN, cluster::addresses);
        // It ends with an error, so the wait for that line does as well.
        ensure!(
            serves.await.is_err(),
            "two servers serve one data directory"
        );
        let status = second.end(START_WITHIN).await?;
        ensure!(!status.success(), "the second server ends without an error");
        Ok(())
    }

    fn spawn_server(&mut self) -> anyhow::Result<Process> {
        self.starts += 1;
        let mut command = self.machine.command(&binaries()?.server);
        command.arg("--data-dir").arg(self.directory.join("data"));
        command.args(["--no-demo", "--shards", "8"]);
        command.args([
            "--grpc-listen",
            "127.0.0.1:0",
            "--http-listen",
            "127.0.0.1:0",
        ]);
        let name = format!("server-{}", self.starts);
        self.spawn(&name, &mut command)
    }

    async fn start_server(&mut self) -> anyhow::Result<()> {
        let process = self.spawn_server()?;
        let serves = process.line("where it serves", START_WITHIN, cluster::addresses);
        let (grpc, http) = serves.await?;
        self.server = Some(Server {
            process,
            grpc,
            http,
        });
        self.note("the server serves");
        self.lead_to(Some(grpc));
        Ok(())
    }

    async fn start_gateway(&mut self, which: usize) -> anyhow::Result<()> {
        let machine = self.clocks.machine(&mut self.random);
        let place = &self.places[which];
        let name = format!("gateway-{which}-{}", place.logs.len());
        let log = self.directory.join(format!("{name}.admitted"));
        let mut command = machine.command(&binaries()?.gateway);
        command.args(["--listen", "127.0.0.1:0"]);
        command.args(["--authority", &format!("http://{}", place.proxy.address)]);
        command.arg("--log-admissions").arg(&log);
        let process = self.spawn(&name, &mut command)?;
        let place = &mut self.places[which];
        place.logs.push((log, machine));
        let serves = process.line("where it serves", START_WITHIN, cluster::gateway_address);
        let address = serves.await?;
        place.gateway = Some(Gateway { process, address });
        for load in &place.loads {
            load.redirect(address).await;
        }
        Ok(())
    }

    async fn stop_gateway(&mut self, which: usize) -> anyhow::Result<()> {
        let gateway = self.places[which].gateway.take().context("it runs")?;
        let status = gateway.process.stop().await?;
        ensure!(status.success(), "a gateway stops with {status}");
        Ok(())
    }

    fn signal_gateway(&mut self, which: usize, signal: Signal) -> anyhow::Result<()> {
        let gateway = self.places[which].gateway.as_mut().context("it runs")?;
        gateway.process.signal(signal)
    }

    fn spawn(&self, name: &str, command: &mut Command) -> anyhow::Result<Process> {
        command.current_dir(&self.directory);
        let copy = self.directory.join(format!("{name}.output"));
        Process::spawn_with_copy(name, command, &copy)
    }

    /// Waits until the server writes to its data directory. False if it does not within a while.
    async fn written(&self) -> bool {
        let data = self.directory.join("data");
        let files = [data.join("sled").join("db"), data.join("commits.mark")];
        let look = || -> [Option<SystemTime>; 2] {
            let changed = |file: &PathBuf| std::fs::metadata(file).ok()?.modified().ok();
            [changed(&files[0]), changed(&files[1])]
        };
        let before = look();
        let change = async {
            while look() == before {
                tokio::task::yield_now().await;
                pass(Duration::from_micros(100)).await;
            }
        };
        tokio::time::timeout(WRITE_WITHIN, change).await.is_ok()
    }
}

//! The judgement of a standby as golden scripts: each file in `standby/` tells one story of sidecar `s1`, and the output is
//! what it asked for, and when. `UPDATE_GOLDENFILES=1` rewrites it; read it before you keep it.

use std::error::Error;

use goldenscript::ArgumentConsumer;
use tailwind_protocol::config::{Configuration, Kind, MemberRef, PrimaryRef, Time};
use tailwind_protocol::ids::{BootId, Claim, Epoch, LogId, MemberId, Version};
use tailwind_protocol::standby::{Desired, Input, Output, Reason, Round, Rules, Standby};

scripts! { Fixture, "tests/protocol/standby":
    app,
    config_store,
    in_doubt,
    primary_gone,
    switchover,
    too_few_members,
}

/// A standby, and how late it is.
#[derive(Default)]
struct Fixture {
    standby: Option<Standby>,
    desired: Option<Desired>,
    now: u64,
    /// The last that it asked under.
    round: Round,
    /// What it follows or asks about.
    known: Option<Configuration>,
}

impl goldenscript::Runner for Fixture {
    type Command = goldenscript::Command;

    fn run(&mut self, command: &Self::Command, _: &goldenscript::Context) -> Result<String, Box<dyn Error>> {
        let mut args = command.consume_args();
        let told = self.play(&command.name, &mut args)?;
        args.reject_next()?;
        Ok(told)
    }
}

impl Fixture {
    fn play(&mut self, command: &str, args: &mut ArgumentConsumer<'_>) -> Result<String, Box<dyn Error>> {
        let input = match command {
            "start" => return self.start(args),
            "wait" => {
                let ms: u64 = args.next_pos().ok_or("milliseconds")?.parse()?;
                return self.wait(ms);
            }
            "desire" => {
                let takes_over_from = args.take_key("takeover").map(str::parse).transpose()?.map(Epoch);
                let desired = Desired { takes_over_from, ..self.desired.ok_or("the first command is `start`")? };
                self.desired = Some(desired);
                Input::Desired(desired)
            }
            "app" => match args.next_pos() {
                Some("connects") => Input::App(true),
                Some("leaves") => Input::App(false),
                _ => return Err("`connects` or `leaves`".into()),
            },
            "read" => match args.next_pos() {
                Some("nothing") => Input::Read(Ok(None)),
                Some("fails") => Input::Read(Err("no answer".to_owned())),
                Some("same") => Input::Read(Ok(self.known.clone())),
                Some(stamp) => Input::Read(Ok(Some(configuration(stamp, args)?))),
                None => return Err("what the config store says".into()),
            },
            "changed" => {
                let stamp = args.next_pos().ok_or("a configuration")?;
                Input::Changed(configuration(stamp, args)?)
            }
            "heartbeat" => Input::Heartbeat(self.asked(args)?),
            "disconnected" => Input::Disconnected(self.asked(args)?, "connection closed".to_owned()),
            "member" => {
                let member: MemberId = args.next_pos().ok_or("a backup's name")?.parse()?;
                let result = answer(&member, args)?;
                Input::MemberAnswered(self.asked(args)?, member, result)
            }
            "primary" => {
                let result = answer(&"the primary", args)?;
                Input::PrimaryAnswered(self.asked(args)?, result)
            }
            other => return Err(format!("no command {other}").into()),
        };
        self.step(input)
    }

    /// The round that is asked about, or an earlier one: `late`.
    fn asked(&self, args: &mut ArgumentConsumer<'_>) -> Result<Round, Box<dyn Error>> {
        match args.next_pos() {
            None => Ok(self.round),
            Some("late") => Ok(Round(self.round.0 - 1)),
            Some(other) => Err(format!("`{other}`: only `late` may follow").into()),
        }
    }

    fn start(&mut self, args: &mut ArgumentConsumer<'_>) -> Result<String, Box<dyn Error>> {
        let min_in_sync = args.take_key("min").map_or(Ok(1), str::parse)?;
        let desired = Desired { min_in_sync, takes_over_from: None };
        let mut out = Vec::new();
        let app_wait_ms = args.take_key("app-wait").map_or(Ok(0), str::parse)?;
        let rules = Rules { heartbeat_silence_ms: 200, spread_ms: 5, app_wait_ms };
        let standby = Standby::start(named("s1", "10.0.0.1:1"), rules, desired, &mut out);
        *self = Fixture { standby: Some(standby), desired: Some(desired), ..Fixture::default() };
        self.tell(&out)
    }

    fn step(&mut self, input: Input) -> Result<String, Box<dyn Error>> {
        let mut out = Vec::new();
        self.standby.as_mut().ok_or("the first command is `start`")?.step(Time(self.now), input, &mut out);
        self.tell(&out)
    }

    /// Time passes; the standby hears of it only when it wants to.
    fn wait(&mut self, ms: u64) -> Result<String, Box<dyn Error>> {
        let until = self.now + ms;
        let mut told = String::new();
        while let Some(Time(at)) = self.standby.as_ref().and_then(Standby::wake_at).filter(|at| at.0 <= until) {
            self.now = self.now.max(at);
            told += &self.step(Input::Tick)?;
        }
        self.now = until;
        Ok(told)
    }

    fn tell(&mut self, out: &[Output]) -> Result<String, Box<dyn Error>> {
        let mut told = String::new();
        for output in out {
            let line = match output {
                Output::ReadConfig => "reads the config store".to_owned(),
                Output::Listen(round, config) => {
                    (self.round, self.known) = (*round, Some(config.clone()));
                    format!("follows {}, epoch {}, version {}", config.primary.id, config.epoch, config.version)
                }
                Output::AskMembers(round, config) => {
                    self.round = *round;
                    let members: Vec<_> = config.members.iter().map(|member| member.id.as_str()).collect();
                    format!("asks members {}", members.join(" "))
                }
                Output::AskPrimary(round, config) => {
                    self.round = *round;
                    format!("asks {}", config.primary.id)
                }
                Output::Report(report) => format!("reports: {report}"),
                Output::Waiting(why) => format!("waits: {why}"),
                Output::WaitOver => "waits no more".to_owned(),
                Output::Claim(reason) => format!(
                    "claims the next epoch: {}",
                    match reason {
                        Reason::NoConfiguration => "there is no group yet",
                        Reason::AlreadyNamed => "it is the primary already",
                        Reason::PrimaryGone => "the primary is gone",
                        Reason::Switchover => "as asked",
                    }
                ),
            };
            told += &format!("{:>4} {line}\n", self.now);
        }
        Ok(told)
    }
}

/// `EPOCH.VERSION PRIMARY [at=ADDRESS] MEMBER …`
fn configuration(stamp: &str, args: &mut ArgumentConsumer<'_>) -> Result<Configuration, Box<dyn Error>> {
    let (epoch, version) = stamp.split_once('.').ok_or("EPOCH.VERSION")?;
    let primary = args.next_pos().ok_or("a sidecar's name")?;
    let address = args.take_key("at").unwrap_or("10.0.0.2");
    let mut members = Vec::new();
    while let Some(name) = args.next_pos() {
        members.push(MemberRef { id: name.parse()?, boot: BootId(1), control: format!("{name}:1") });
    }
    Ok(Configuration {
        log: LogId(1),
        kind: Kind::Log,
        epoch: Epoch(epoch.parse()?),
        claim: Claim(0),
        earlier: Vec::new(),
        won: Epoch(0),
        cuts: Vec::new(),
        version: Version(version.parse()?),
        primary: named(primary, &format!("{address}:1")),
        members,
    })
}

fn named(name: &str, control: &str) -> PrimaryRef {
    PrimaryRef { id: name.parse().expect("a name"), control: control.to_owned() }
}

fn answer(who: &dyn std::fmt::Display, args: &mut ArgumentConsumer<'_>) -> Result<Result<(), String>, Box<dyn Error>> {
    match args.next_pos() {
        Some("answers") => Ok(Ok(())),
        Some("is-silent") => Ok(Err(format!("{who} is silent"))),
        _ => Err("`answers` or `is-silent`".into()),
    }
}

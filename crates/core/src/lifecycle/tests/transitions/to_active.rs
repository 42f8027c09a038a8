//! Rows on the way to ACTIVE, and of accounts that are.

use super::*;

/// The text of each row, and what takes it.
pub(super) const SCENARIOS: &[(&str, RowScenario)] = &[
    ("it is to be inactive", |_| World::of(account("a").wanted_inactive())),
    ("it is to be active; a zone, an agent of it and the credential are there", |from| {
        let mut world = at(from);
        world.sessions.push(session("agent-1", "east"));
        wanted(world)
    }),
    ("it is to be active; agents of several zones are asked for an offer", |from| {
        let mut world = at(from);
        world.sessions.extend([session("agent-1", "east"), session("agent-2", "west")]);
        wanted(world)
    }),
    ("it is to be active; its Secret takes longer than five seconds", |from| {
        let mut world = at(from);
        world.slow = true;
        world.sessions.push(session("agent-1", "east"));
        wanted(world)
    }),
    ("it is to be active; no agent is connected that could take it", |from| {
        let mut world = at(from);
        world.sessions.clear();
        wanted(world)
    }),
    ("its credential cannot be had, or is refused", |from| {
        let mut world = at(from);
        world.secret = Err(failure(FailureClass::BadKubeconfig));
        if from.is_none() || from == Some(State::Inactive) {
            world.sessions.push(session("agent-1", "east"));
            world = wanted(world);
        }
        world.recheck();
        assert_eq!(reason(world.status()), "KubeconfigRefused");
        world
    }),
    ("an older object has the same account name", |from| {
        let mut world = at(from);
        world.taken_by("spinnaker/older");
        world.run_until_idle();
        assert_eq!(reason(world.status()), "DuplicateName");
        world
    }),
    ("somebody else's row has its name", |from| {
        let mut world = at(from);
        world.row = crate::lifecycle::RowFact::Foreign;
        world.sessions.push(session("agent-1", "east"));
        let world = wanted(world);
        assert_eq!(reason(world.status()), "RowExists");
        world
    }),
    ("a zone offers", |from| {
        let mut world = at(from);
        world.answer("agent-2", Offer::Yes);
        assert_eq!(world.status().granted_zone(), Some(&"west".into()));
        world
    }),
    ("its Secret is there", |_| {
        let mut world = World::of(account("a"));
        world.slow = true;
        world.connect("agent-1", "east");
        assert_eq!((world.state(), world.writes().len()), (State::ToMigrate, 2));
        world.slow = false;
        world.recheck();
        world
    }),
    ("no zone has offered in time", |from| {
        let mut world = at(from);
        world.wait(30);
        world
    }),
    ("an agent holds it", |from| {
        let mut world = at(from);
        world.say("agent-1", held());
        world
    }),
    ("all agents of its zone failed", |from| {
        let mut world = at(from);
        world.say("agent-1", fails(FailureClass::Unreachable));
        assert_eq!(world.status().failed_count, 1);
        world
    }),
    ("all agents of its zone say nothing", |from| {
        let mut world = at(from);
        world.wait(30);
        assert_eq!(reason(world.status()), "Timeout");
        world
    }),
    ("all agents of its zone are gone", |from| {
        let mut world = at(from);
        world.cut("agent-1").wait(30);
        assert_eq!((reason(world.status()), world.status().failed_count), ("NoAgent", 0));
        world
    }),
    ("its agents cannot reach it from their zone, which was found by asking", |_| {
        let mut world = at(Some(State::ToMigrate));
        world.answer("agent-1", Offer::Yes);
        assert_eq!(world.writes(), ["ACTIVATING"]);
        world.say("agent-1", fails(FailureClass::Unreachable)).say("agent-1", AgentReport::Dropped);
        assert_eq!(world.status().tried_zones, ["east"]);
        world
    }),
    ("all its agents reached another cluster than the one it is bound to", |from| {
        let mut world = if from == Some(State::Activating) {
            let mut world = at(Some(State::Active));
            world.edit(another_definition).writes();
            world
        } else {
            at(from)
        };
        if from == Some(State::Orphaned) {
            world.connect("agent-1", "east");
        }
        assert_eq!(Some(world.state()), from);
        world.say("agent-1", AgentReport::Held(cluster_named("staging")));
        assert_eq!(reason(world.status()), "ClusterMismatch");
        world
    }),
    ("its definition or credential changes", |from| {
        let mut world = at(from);
        let epoch = world.status().epoch;
        world.edit(another_definition);
        assert_eq!(world.status().epoch, epoch.next());
        world
    }),
    ("its definition or credential changes, and an agent connects", |from| {
        let mut world = at(from);
        world.edit(another_definition).writes();
        world.connect("agent-1", "east");
        world
    }),
    ("zoneId names another zone, which has an agent", |from| {
        let mut world = at(from);
        world.connect("agent-2", "west");
        world.writes();
        world.edit(|account| account.spec.zone_id = Some("west".into()));
        // Nobody is there to let go of an orphan.
        if from != Some(State::Orphaned) {
            assert_eq!(
                (world.status().phase(), world.status().granted_zone()),
                (GrantPhase::Revoking, Some(&"east".into()))
            );
            world.say("agent-1", AgentReport::Dropped);
        }
        assert_eq!(world.status().granted_zone(), Some(&"west".into()));
        world
    }),
    ("one agent loses it, and another holds it", |from| {
        let mut world = at(from);
        world.connect("agent-2", "east").say("agent-2", held()).writes();
        world.say("agent-1", AgentReport::Lost(failure(FailureClass::Unreachable)));
        world
    }),
    ("the only agent loses it, and is asked again", |from| {
        let mut world = at(from);
        world.say("agent-1", AgentReport::Lost(failure(FailureClass::Unreachable)));
        world.sessions[0].silent_for = Some(0);
        world.wait(29);
        world
    }),
    ("no agent holds it, and all failed", |from| {
        let mut world = at(from);
        world.say("agent-1", fails(FailureClass::Forbidden));
        world
    }),
    ("its cluster refuses the credential with which an agent holds it", |from| {
        let mut world = at(from);
        if from == Some(State::Orphaned) {
            world.connect("agent-1", "east");
        }
        world.say("agent-1", refused());
        assert_eq!(reason(world.status()), "Unauthorized");
        world
    }),
    ("a further agent of its zone connects", |from| {
        let mut world = at(from);
        world.connect("agent-2", "east");
        world
    }),
    ("the last agent that held it is gone", |from| {
        let mut world = at(from);
        world.cut("agent-1").wait(30);
        world
    }),
    ("an agent of its zone connects and holds it", |from| {
        let mut world = at(from);
        world.connect("agent-1", "east").say("agent-1", held());
        world
    }),
    ("the agents of its zone that connect fail", |from| {
        let mut world = at(from);
        world.connect("agent-1", "east").say("agent-1", fails(FailureClass::Tls));
        world
    }),
    ("its zone, found by asking, has had no agent for 600 s, and others have", |from| {
        let mut world = at(from);
        world.connect("agent-2", "west").connect("agent-3", "north");
        world.cut("agent-1").wait(590);
        // A failed one has said meanwhile that nobody is there.
        world.writes();
        world.wait(11);
        world
    }),
];

/// Makes it wanted, if it is not.
fn wanted(mut world: World) -> World {
    world.edit(to_be_active);
    world
}
